"""Compiling sources: a library is compiled anew when anything it depends on changes."""

from pathlib import Path

import pytest

from torchbayes.native import build
from torchbayes.native.build import UnavailableError, available

pytestmark = pytest.mark.skipif(not available(), reason="kernels cannot be built here (compiler or MKL missing)")


def test_a_library_is_made_anew_when_a_header_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source, plain = tmp_path / "some.cpp", tmp_path / "plain.cpp"
    source.write_text('#include "value.hpp"\nextern "C" int value() { return kValue; }\n')
    plain.write_text('extern "C" int value() { return 3; }\n')
    names = []
    for value in (1, 2, 1):
        (tmp_path / "value.hpp").write_text(f"constexpr int kValue = {value};\n")
        names.append((build._compiled(source).name, build._compiled(plain).name))
    assert names[0] == names[2]
    assert names[0][0] != names[1][0]  # another header
    assert names[0][1] == names[1][1]  # which this one does not use
    assert len(list((tmp_path / "cache").rglob("*.so"))) == 3


def test_a_header_that_is_missing_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "some.cpp"
    source.write_text('#include "missing.hpp"\n')
    with pytest.raises(UnavailableError, match=r"could not compile some\.cpp"):
        build._compiled(source)
