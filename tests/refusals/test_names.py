"""Every public name has its nonsense, or a reason why it has none: a new one without entries fails here."""

import inspect

import pytest

import torchbayes as tb
from tests.refusals.pictures import PICTURES
from tests.refusals.rooms import ROOMS
from tests.refusals.settings import SETTINGS
from tests.refusals.verbs import VERBS
from torchbayes import (
    acquisition,
    adapters,
    data,
    diagnostics,
    evidence,
    geometry,
    inverse,
    lora,
    metrics,
    networks,
    report,
    trainers,
)
from torchbayes import sklearn as estimators
from torchbayes.report import figures

TABLES = {**SETTINGS, **VERBS, **ROOMS, **PICTURES}
ROOMS_OF = {
    "": tb,
    "likelihoods.": tb.likelihoods,
    "priors.": tb.priors,
    "acquisition.": acquisition,
    "adapters.": adapters,
    "metrics.": metrics,
    "diagnostics.": diagnostics,
    "evidence.": evidence,
    "geometry.": geometry,
    "inverse.": inverse,
    "lora.": lora,
    "coresets.": tb.coresets,
    "calibration.": tb.calibration,
    "compression.": tb.compression,
    "conformal.": tb.conformal,
    "distillation.": tb.distillation,
    "decisions.": tb.decisions,
    "data.": data,
    "networks.": networks,
    "report.": report,
    "figures.": figures,
    "hub.": tb.hub,
    "sklearn.": estimators,
    "trainers.": trainers,
}
RESULTS = {"Batch", "Chains", "Collector", "Diagnosis", "Difference", "Evaluation", "Event", "FunctionalLaplace"}
RESULTS |= {"Approximation", "LaplacePosterior", "LeaveOneOut", "MatchedPrior", "ModelAverage", "Posterior"}
RESULTS |= {"PredictiveModule", "PriorPredictive", "Certificate", "Check"}
RESULTS |= {
    "compression.Compressed",
    "conformal.Conformal",
    "conformal.Jackknife",
    "conformal.Threshold",
    "distillation.Fidelity",
    "distillation.Student",
    "distillation.StudentModule",
    "decisions.Decisions",
    "priors.Scaled",
    "adapters.Answers",
    "adapters.Continuations",
    "data.Data",
    "data.Pair",
    "evidence.Evidence",
    "diagnostics.Modes",
    "diagnostics.Stacked",
    "diagnostics.Summary",
}
RESULTS |= {"calibration.Calibrated", "calibration.ClassCalibrator", "calibration.Calibrator", "calibration.VennAbers"}
RESULTS |= {
    "Learned",
    "geometry.Barrier",
    "geometry.Interior",
    "geometry.PermutationGroup",
    "geometry.PermutationGroups",
}
RESULTS |= {
    "geometry.Basin",
    "geometry.Estimate",
    "geometry.Plane",
    "geometry.Rays",
    "geometry.Surface",
    "geometry.Leading",
    "geometry.LearningCoefficient",
    "geometry.Spectrum",
}
RESULTS |= {"Acquired", "acquisition.Acquired", "acquisition.Round", "acquisition.Study"}
RESULTS |= {"lora.Round", "lora.Run", "lora.Score", "lora.Study"}
PROTOCOLS = {"coresets.Coreset", "likelihoods.Likelihood", "likelihoods.Parameters", "figures.Better"}
PROTOCOLS |= {"conformal.ClassScore", "conformal.NumberScore", "decisions.NumberCost"}
PROTOCOLS |= {"priors.Prior", "priors.SampledPrior", "priors.ShapedPrior"}
# their own tests damage files
FILES = {"adapters.read_questions", "load", "load_module", "calibration.load", "compression.load", "conformal.load"}
FILES |= {"distillation.load"}
FILES |= {"decisions.load", "hub.load", "hub.push", "hub.save"}
ESTIMATORS = {"sklearn." + name for name in estimators.__all__}  # tests/sklearn: they check what they get in `fit`
RUNS = {"lora." + name for name in ("acquire", "fit", "load", "predict", "score")}  # tests/lora: they need a base
PROCESSES = {"adapters.shard"}  # needs a process group, as tests/native/test_sharding.py has it
TAKE_NOTHING = {"Progress", "data.names", "data.ood_names", "networks.names", "report.versions"}
ELSEWHERE = RESULTS | PROTOCOLS | FILES | PROCESSES | TAKE_NOTHING | ESTIMATORS | RUNS


def names():
    """Every public name with its room, but errors, rooms and constants."""
    actual = []
    for prefix, room in ROOMS_OF.items():
        own = [n for n, o in vars(room).items() if inspect.isclass(o) and o.__module__ == room.__name__ and n[0] != "_"]
        for name in getattr(room, "__all__", own):
            thing = getattr(room, name)
            error = inspect.isclass(thing) and issubclass(thing, Exception | Warning)
            if callable(thing) and not error:
                actual.append(prefix + name)
    return actual


@pytest.mark.parametrize("name", names())
def test_a_public_name_has_its_nonsense(name):
    assert (name in TABLES) != (name in ELSEWHERE)


def test_the_reasons_are_of_names_that_are_there():
    assert set(names()) >= ELSEWHERE
    malformed = sum(len(values) for case in TABLES.values() for values in case.wrong.values())
    assert malformed >= 600
