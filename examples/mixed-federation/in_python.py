"""Five kinds of models in one process: `python in_python.py`."""

from mixed import task

import predbayes as pb


# --8<-- [start:run]
def run(seed=0, learners=tuple(task.LEARNERS)):
    """One run; each site has the learner of its number."""
    sites = {f"site {number}": task.site_rows(seed, number) for number in range(len(learners))}
    of_sites = {site: task.LEARNERS[name] for site, name in zip(sites, learners, strict=True)}
    federation = pb.InProcess(sites, learners=of_sites)
    return pb.run(task.METHOD, federation, task.reference_rows(seed), seed=seed)


if __name__ == "__main__":
    result = run()
    inputs, targets = task.rows_to_come(0)
    print(result)
    print(f"NLL {pb.metrics.nll(result.predict(inputs), targets):.3f} on {len(targets)} new rows")
# --8<-- [end:run]
