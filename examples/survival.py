"""Time to an event: a whole study of three hospitals in one process, read as in a notebook.

The patients are invented: the older one is and the higher the score, the sooner the event.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from predbayes_study import Study
from predbayes_study.kit.kit import freeze
from predbayes_study.payloads.details import save_signed
from predbayes_study.site.fitting import make_upload
from predbayes_study.site.rows import SiteRows
from predbayes_study.trust.signing import SigningKey

PLAN = """
format = 1
name = "relapse"
description = "Time to relapse, from age and a score at diagnosis."
[target]
name = "days"
task = "survival"
unit = "days"
event = "relapse"
codes = ["no", "yes"]
times = [90, 180, 365, 730]
[columns]
age = { type = "number", unit = "years", range = [18, 110] }
score = { type = "number", unit = "points", range = [-10, 10] }
[reference]
file = "reference.csv"
source = "invented"
licence = "CC0"
legal_basis = "nobody's data"
labelled = 100
evaluate = 300
[model]
hidden = []
[learner]
name = "logistic-regression"
holdout = 0.0
holdout_reason = "an example"
[gate]
[pool]
own = "logistic-regression"
[rules]
quorum = 3
"""


def patients(num_rows, older, rng):
    """Patients of one hospital; a third or so is lost from sight before the event."""
    age, score = rng.normal(60 + older, 10, num_rows).clip(20, 100), rng.normal(0, 1, num_rows)
    event = rng.exponential(500 / np.exp(0.05 * (age - 60) + 0.8 * score))
    seen = rng.uniform(200, 1200, num_rows)
    days = np.minimum(event, seen).round().clip(1)
    told = np.where(event <= seen, "yes", "no")
    return pd.DataFrame(
        {"age": age.round(), "score": score.round(2), "days": days, "relapse": told}
    )


rng = np.random.default_rng(0)
Path("plan.toml").write_text(PLAN, encoding="utf-8")
patients(400, 0, rng).to_csv("reference.csv", index=False)
tables = {"Bergen": (400, -8), "Lyon": (300, 0), "Turin": (300, 8)}

# --8<-- [start:run]
kit = freeze(Path("plan.toml"), Path("kit"), Path("labels.json"), salt=bytes(32))  # yours: secret
study = Study.init("study", "kit", "labels.json")
for site, (num_rows, older) in tables.items():
    rows = SiteRows.of(kit.plan, patients(num_rows, older, rng))
    key = SigningKey.generate()
    study.admit(site, key.public)
    save_signed(make_upload(kit, site, (rows.inputs, rows.targets)), f"{site}.safetensors", key)
    study.add(f"{site}.safetensors")
study.finish()

result = study.result(1)
print(result.verdict)
for name, scores in (("model", result.student.scores), ("labels alone", result.server_only)):
    nll, c_index = scores.metrics["nll"], scores.metrics["c_index"]
    print(f"{name}: NLL {nll.value:.3f}, C-index {c_index.value:.3f}")
# --8<-- [end:run]
