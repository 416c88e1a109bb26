"""Five sites with a model of another kind each, and one model for all of them in the end."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression

import predbayes as pb
from predbayes.posterior.cyclical import SamplerSettings

# --8<-- [start:learners]
NETWORK = pb.Network.mlp(30, pb.Softmax(2), hidden=(32,))
SAMPLER = SamplerSettings(num_epochs=100, batch_size=25, friction=0.1, prior_std=0.3)
LEARNERS = {
    "gradient-boosting": pb.SklearnClassifier(
        HistGradientBoostingClassifier(learning_rate=0.07, max_leaf_nodes=6, early_stopping=False),
        num_classes=2,
        calibrated=True,
    ),
    "random-forest": pb.SklearnClassifier(RandomForestClassifier(50, min_samples_leaf=3), 2),
    "network": pb.SGHMCLearner(NETWORK, SAMPLER),
    "gaussian-process": pb.SklearnClassifier(GaussianProcessClassifier(1.0 * RBF(5.0)), 2),
    "logistic-regression": pb.SklearnClassifier(LogisticRegression(max_iter=1000), 2),
}
METHOD = pb.Distilled(
    pb.Pooled(LEARNERS["network"], pb.pools.AutoPool(), send="predictions"),
    student=pb.Network.mlp(30, pb.Softmax(2), hidden=(32,)),
)
# --8<-- [end:learners]
NUM_REFERENCE, NUM_LABELLED, NUM_ROWS = 120, 60, 50  # the last one at each site


def learner(context):
    """A site's own kind of model: here the one of its number."""
    return list(LEARNERS.values())[int(context.node_config["partition-id"])]


def rows(context):
    """A site's rows: here those of its number; yours read a table."""
    seed, number = int(context.run_config["seed"]), int(context.node_config["partition-id"])
    return site_rows(seed, number)


def reference(context):
    """The coordinator's rows, half of them with labels."""
    return reference_rows(int(context.run_config["seed"]))


def site_rows(seed, number):
    """The rows of one site."""
    inputs, targets = tumours(seed)
    start = NUM_REFERENCE + number * NUM_ROWS
    return inputs[start : start + NUM_ROWS], targets[start : start + NUM_ROWS]


def reference_rows(seed):
    """The reference rows."""
    inputs, targets = tumours(seed)
    labelled = (inputs[:NUM_LABELLED], targets[:NUM_LABELLED])
    return pb.ReferenceRows.of(labelled, unlabelled=inputs[NUM_LABELLED:NUM_REFERENCE])


def rows_to_come(seed):
    """Rows that nobody has seen."""
    return tuple(part[NUM_REFERENCE + len(LEARNERS) * NUM_ROWS :] for part in tumours(seed))


def tumours(seed):
    """569 tumours that come with scikit-learn, shuffled, in units of the reference rows."""
    inputs, targets = (torch.tensor(a) for a in load_breast_cancer(return_X_y=True))
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    inputs, targets = inputs[order].float(), targets[order]
    known = inputs[:NUM_REFERENCE]
    return (inputs - known.mean(0)) / known.std(0), targets
