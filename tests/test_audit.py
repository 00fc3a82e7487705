"""The audit works without the advisory service: it says which result it uses, and its date."""

from __future__ import annotations

import json
import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def audit(monkeypatch, tmp_path):
    """The script, with files in a temporary folder and a service that does not answer."""
    loader = SourceFileLoader("audit_script", str(ROOT / ".ci" / "audit"))
    module = module_from_spec(spec_from_loader("audit_script", loader))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader.exec_module(module)
    monkeypatch.setattr(module, "ADVISORIES", tmp_path / "advisories.json")
    monkeypatch.setattr(module, "ask_service", lambda versions: None)
    return module


def test_the_sbom_has_the_tested_versions_and_a_date(audit):
    assert audit.sbom_versions() == audit.pinned_versions()
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", audit.sbom_date())
    assert "externalReferences" not in audit.SBOM.read_text("utf-8")


def test_without_the_service_and_a_list_nothing_is_claimed(audit, capsys):
    assert audit.main() == 2
    text = capsys.readouterr().out
    assert "the advisory service cannot be reached" in text
    assert f"sbom.cdx.json of {audit.sbom_date()}" in text
    assert "nothing was compared" in text


@pytest.mark.parametrize(
    ("changes", "vulnerable", "code", "expected"),
    [
        ({}, {}, 0, "158 of 158 versions"),
        ({"numpy": "1.0"}, {}, 2, "not compared: numpy"),
        ({}, {"numpy": [{"id": "CVE-1"}]}, 1, "has known vulnerabilities: CVE-1."),
        ({"numpy": "1.0"}, {"numpy": [{"id": "CVE-1"}]}, 2, "not compared: numpy"),
    ],
)
def test_the_last_list_is_used_with_its_date(audit, changes, vulnerable, code, expected, capsys):
    versions = audit.pinned_versions()
    expected = expected.replace("158", str(len(versions)))
    saved = {"date": "2026-01-02", "versions": versions | changes, "vulnerable": vulnerable}
    audit.ADVISORIES.write_text(json.dumps(saved))
    assert audit.main() == code
    text = capsys.readouterr().out
    assert expected in text
    assert "advisories of 2026-01-02." in text
