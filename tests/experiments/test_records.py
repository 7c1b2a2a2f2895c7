"""Records: what is in a file is read, not computed again."""

from torchbayes_experiments.files import load_or_compute


def test_what_a_file_holds_is_not_computed_again(tmp_path):
    path = tmp_path / "a" / "numbers.json"
    path.parent.mkdir()
    assert load_or_compute(path, lambda: {"evidence": -1.5}) == {"evidence": -1.5}

    def again():
        raise AssertionError("computed twice")

    assert load_or_compute(path, again) == {"evidence": -1.5}
