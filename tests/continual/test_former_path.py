"""The room was called `sequences` before."""

import importlib
import sys

import pytest

import torchbayes as tb


def test_the_former_path_leads_here_and_says_so():
    sys.modules.pop("torchbayes.sequences", None)
    with pytest.warns(FutureWarning, match="`torchbayes.sequences` is `torchbayes.continual` now"):
        former = importlib.import_module("torchbayes.sequences")
    assert former.sequence is tb.sequence
    assert former.Task is tb.Task
