"""The same five sites by files alone: `python by_files.py OUT [SEED]`.

OUT becomes six folders. The coordinator's plan says `learner.name = "any"`, so that each site says
`--learner` when it trains.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
from mixed import task

COLUMNS = [f"x{number}" for number in range(30)]
SITES = {f"site {number}": name for number, name in enumerate(task.LEARNERS)}
PLAN = f"""
format = 1
name = "mixed"
[target]
name = "kind"
task = "classification"
classes = ["malignant", "benign"]
[columns]
{chr(10).join(f'{name} = {{ type = "number", range = [-50, 50] }}' for name in COLUMNS)}
[reference]
file = "reference.csv"
source = "Breast Cancer Wisconsin (Diagnostic), as it comes with scikit-learn"
licence = "CC BY 4.0"
legal_basis = "published data without names"
labelled = {task.NUM_LABELLED}
[model]
hidden = [32]
[learner]
name = "any"
num_epochs = 100
min_steps = 200
holdout = 0.0
holdout_reason = "the example scores rows to come"
[pool]
own = "none"
[rules]
quorum = 5
"""


def main(out, seed=0, run=None):
    """The whole study, and what its model says of the rows to come."""
    run, coordinator = run or as_process, out / "coordinator"
    prepare(out, seed)
    run(coordinator, ["plan", "freeze", "plan.toml", "--out", "kit"])
    run(coordinator, ["study", "init", "kit", "--labels", "kit-labels.json"])
    for site, learner in SITES.items():
        run(out / site, ["site", "key", site])
        shutil.copytree(coordinator / "kit", out / site / "kit")
        run(coordinator, ["study", "admit", site, f"../{site}/{site}.pub"])
        trained = ["site", "train", "kit", "rows.csv", "--learner", learner, "--out", "out"]
        run(out / site, trained)
        run(coordinator, ["study", "add", f"../{site}/out/{site}.safetensors"])
    run(coordinator, ["study", "finish"])
    run(coordinator, ["predict", "study/results/1", "later.csv", "--out", "predicted.csv"])


def prepare(out, seed):
    """A folder for the coordinator and for each site, with their tables."""
    coordinator = out / "coordinator"
    coordinator.mkdir(parents=True)
    (coordinator / "plan.toml").write_text(PLAN)
    inputs, targets = (part[: task.NUM_REFERENCE] for part in task.tumours(seed))
    reference = table(inputs, targets)
    reference.loc[task.NUM_LABELLED :, "kind"] = ""
    reference.to_csv(coordinator / "reference.csv", index=False)
    table(*task.rows_to_come(seed)).to_csv(coordinator / "later.csv", index=False)
    for number, site in enumerate(SITES):
        (out / site).mkdir()
        (out / site / "site.toml").write_text(f'format = 1\nname = "{site}"\n')
        table(*task.site_rows(seed, number)).to_csv(out / site / "rows.csv", index=False)


def table(inputs, targets):
    """Rows as a table."""
    kinds = ["benign" if target else "malignant" for target in targets.tolist()]
    return pd.DataFrame(inputs.numpy(), columns=COLUMNS).round(4).assign(kind=kinds)


def as_process(folder, arguments):
    """Run a command as a process of its own."""
    print(f"{folder.name}$ predbayes {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "predbayes_study", *arguments], cwd=folder, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
