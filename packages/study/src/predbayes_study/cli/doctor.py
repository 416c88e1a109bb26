"""`predbayes doctor`: versions, platform, extras, and whether the parts do here what they should.

Nothing of it is private: no path, no name of a person or a machine. It is what the report of a
problem needs.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Sequence

import typer

import predbayes
from predbayes import system
from predbayes.optional import install_command
from predbayes_study.cli.show import say

_CORE = ("torch", "numpy", "pandas", "safetensors", "pydantic")
# Distributions, by their folders in the repository.
_PARTS = {
    "core": "predbayes",
    "study": "predbayes-study",
    "flower": "predbayes-flower",
    "lab": "predbayes-lab",
}
_REQUIREMENT = re.compile(
    r"([A-Za-z0-9._-]+)[^;]*(?:; (?:(?P<marker>.*) and )?extra == ['\"](?P<extra>[a-z]+)['\"])?"
)


def doctor_command() -> None:
    """Show versions, and test sampler, pool and signature."""
    say(f"predbayes {predbayes.__version__}")
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    say(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    say(f"{os.cpu_count()} cores, OMP_NUM_THREADS {threads}")
    say(", ".join(f"{name} {_installed(name) or 'missing'}" for name in _CORE))
    for what, names in _extras().items():
        say(_state(what, names))
    failed = [name for name, test in _TESTS.items() if not _passes(name, test)]
    if failed:
        say("something here does not work as it should; please report these lines", err=True)
        raise typer.Exit(1)


def _state(what: str, names: Sequence[str]) -> str:
    """Whether a part or an extra is there, with versions; or else how to get it."""
    missing = [name for name in names if _installed(name) is None]
    found = ", ".join(f"{name} {_installed(name)}" for name in names if name not in missing)
    part, bracket, extra = what.partition("[")
    shown = f"{_PARTS[part]}{bracket}{extra}"
    if not missing:
        return f"{shown} installed: {found}"
    has = f"; has {found}" if found else ""
    return f"{shown} missing: {', '.join(missing)}{has}; {install_command(what)}"


def _passes(name: str, test: Callable[[], str]) -> bool:
    """Run a self-test, which returns what is wrong."""
    try:
        wrong = test()
    except ModuleNotFoundError as error:
        say(f"{name}: not tested, {error.name} is not installed")
        return True
    except Exception as error:  # whatever it is, the other lines are wanted, too
        wrong = f"{type(error).__name__}: {error}"
    say(f"{name}: {wrong or 'as it should be'}")
    return not wrong


def _sampler() -> str:
    """Sample a normal posterior of which mean and standard deviation are known."""
    import torch

    from predbayes.posterior.sghmc import SGHMC
    from predbayes.seeding import generator

    num_rows, num_chains = 100, 1000
    weights = torch.nn.Parameter(torch.zeros(num_chains))
    sampler = SGHMC(
        [weights], step_size=0.02, num_rows=num_rows, friction=0.2, prior_std=100.0,
        rng=generator(0, "doctor"),
    )  # fmt: skip
    for _ in range(400):
        sampler.zero_grad()
        (0.5 * (weights - 1) ** 2).sum().backward()  # type: ignore[no-untyped-call]
        sampler.step()
    found = weights.detach()
    mean, std = float(found.mean()), float(found.std())
    right = abs(mean - 1) < 0.02 and abs(std - 0.1) < 0.015
    return "" if right else f"a normal of mean 1 and deviation .1 came out as {mean:.3f}, {std:.3f}"


def _pool() -> str:
    """Pool two predictives of which product and mixture are known, in both orders."""
    import torch

    from predbayes.predictive.families import Categorical
    from predbayes.predictive.pooling import PredictiveSum

    rows = [torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.5]])]
    one, other = (PredictiveSum.of(Categorical.from_moments(row.double())) for row in rows)
    total, turned = one + other, other + one
    product, mixture = total.product().moments(), total.mixture().moments()
    expected = torch.tensor([[0.9, 0.1], [0.7, 0.3]]).double()
    if not torch.allclose(torch.cat([product, mixture]), expected, atol=1e-6):
        return "product or mixture of two predictions is wrong"
    same = torch.equal(product, turned.product().moments())
    return "" if same else "the order of two sites shows in the bits"


def _signature() -> str:
    """Sign, check, and refuse what was altered."""
    from predbayes_study.trust.signing import SigningKey

    key = SigningKey.generate()
    signed = key.sign("upload", b"content")
    if not key.public.verifies("upload", b"content", signed):
        return "a signature does not verify"
    return "an altered text verifies" if key.public.verifies("upload", b"other", signed) else ""


_TESTS: dict[str, Callable[[], str]] = {
    "sampler": _sampler,
    "pool": _pool,
    "signature": _signature,
}


def _extras() -> dict[str, list[str]]:
    """Packages of each part and extra that a user may want here, by `install_command`'s names."""
    # Not above: the help of all commands would wait for it.
    from importlib.metadata import PackageNotFoundError, requires

    found: dict[str, list[str]] = {}
    for part, name in _PARTS.items():
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            found[part] = [name]
            continue
        for line in lines:
            match = _REQUIREMENT.match(line)
            if match is None or match[1].startswith("predbayes") or not _is_for_here(line):
                continue
            what = f"{part}[{match['extra']}]" if match["extra"] else part
            found.setdefault(what, []).append(match[1])
    return found


def _is_for_here(line: str) -> bool:
    """Whether a marker such as `sys_platform != 'darwin'` of a requirement holds."""
    wanted = re.search(r"sys_platform (==|!=) ['\"](\w+)['\"]", line)
    return wanted is None or (wanted[2] == system.NAME) == (wanted[1] == "==")


def _installed(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None
