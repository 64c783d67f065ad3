"""Print the bill of materials of a release: CycloneDX 1.6, as JSON, of what `pip install 'loomrl[EXTRA]'` may bring.

    python deploy/release/bill_of_materials.py SOURCE > loomrl.cdx.json

`SOURCE` is a folder with `pyproject.toml` and `constraints.txt`. It is made in the environment of `make setup`:
`cyclonedx-py` reads there what packages say of themselves. Here is chosen which of them belong to the product: all that
are pinned, but for those that nothing needs but the extra `dev`.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OF_DEVELOPERS = "dev"
_MAX_NAME = 100  # characters of a license's name; some packages have its whole text there, which begins with it
NOT_KNOWN = "NOASSERTION"
_OF_OTHERS = Path(__file__).with_name("licenses.toml")
_LICENSE_FILE = re.compile(r"\.dist-info/(licenses/)?(LICEN[CS]E|COPYING)[^/]*$")
_REDISTRIBUTIONS = ("redistributions of source code must retain", "redistributions in binary form must reproduce")
_SENTENCES = {
    "MIT": (
        "permission is hereby granted, free of charge, to any person obtaining a copy",
        "permission notice shall be included in all copies",
    ),
    "Apache-2.0": ("apache license version 2.0", "grant of patent license"),
    "BSD-3-Clause": (*_REDISTRIBUTIONS, "neither the name of"),
    "BSD-2-Clause": _REDISTRIBUTIONS,
}
Needs = dict[str, set[str]]  # package -> packages


def needed(requirements: Iterable[Requirement], installed: Mapping[str, Distribution]) -> Needs:
    """What these requirements lead to, each with what it needs itself, where it is installed."""
    found: Needs = {}
    waiting, seen = list(requirements), set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        needs = found.setdefault(name, set())
        for extra in ("", *requirement.extras):
            if (name, extra) in seen or name not in installed:
                continue
            seen.add((name, extra))
            named = map(Requirement, installed[name].requires or ())
            these = [one for one in named if one.marker is None or one.marker.evaluate({"extra": extra})]
            needs.update(canonicalize_name(one.name) for one in these)
            waiting += these
    return found


def product(
    project: Mapping[str, Any], pins: Collection[str], installed: Mapping[str, Distribution]
) -> tuple[set[str], Needs]:
    """The packages among `pins` that belong to a project, and what they and the project need, as far as known.

    What is pinned and not installed here counts: better one too many than one that nobody looks at.

    Raises:
        SystemExit: where one is needed and not pinned.
    """
    extras: dict[str, list[str]] = project["optional-dependencies"]
    texts = [*project["dependencies"], *(text for name in extras if name != OF_DEVELOPERS for text in extras[name])]
    direct = [one for one in map(Requirement, texts) if one.marker is None or one.marker.evaluate()]
    ours = needed(direct, installed)
    name = canonicalize_name(project["name"])
    if missing := sorted(ours.keys() - set(pins)):
        raise SystemExit(f"not in constraints.txt, and needed: {', '.join(missing)}; pin them there")
    tools = [one for one in map(Requirement, extras[OF_DEVELOPERS]) if canonicalize_name(one.name) != name]
    theirs = needed(tools, installed).keys() - ours.keys()
    return set(pins) - theirs, ours | {name: {canonicalize_name(one.name) for one in direct}}


def main(source: Path) -> None:
    """Print it."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    lines = re.findall(r"^([\w.-]+)==(\S+)$", (source / "constraints.txt").read_text(), re.MULTILINE)
    pins = {canonicalize_name(name): (name, version) for name, version in lines}
    installed = {canonicalize_name(one.name): one for one in distributions()}
    names, needs = product(project, pins, installed)
    command = [
        *(sys.executable, "-m", "cyclonedx_py", "environment", sys.executable, "--sv", "1.6", "--output-reproducible"),
        *("--pyproject", str(source / "pyproject.toml"), "--mc-type", "library", "--no-validate"),  # a test validates
    ]
    bill = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    described = {canonicalize_name(one["name"]): one for one in bill["components"]}
    components = [_component(*pins[name], described.get(name, {}), installed.get(name)) for name in sorted(names)]
    root = bill["metadata"]["component"]
    root["purl"] = root["bom-ref"] = f"pkg:pypi/{canonicalize_name(project['name'])}@{project['version']}"
    refs = {canonicalize_name(one["name"]): one["bom-ref"] for one in (root, *components)}
    edges = {refs[name]: sorted(refs[one] for one in found if one in refs) for name, found in needs.items()}
    bill["components"] = components
    bill["dependencies"] = [{"ref": ref, "dependsOn": edges[ref]} for ref in sorted(edges)]
    print(json.dumps(bill, indent=1, ensure_ascii=False))


def _component(name: str, version: str, described: dict[str, Any], found: Distribution | None) -> dict[str, Any]:
    """A package as it is pinned; where `cyclonedx-py` knows no license by its SPDX name, with the one found here."""
    purl = f"pkg:pypi/{canonicalize_name(name)}@{version}"
    component = {"type": "library"} | described | {"name": name, "version": version, "bom-ref": purl, "purl": purl}
    if "licenses" not in component:
        component["licenses"] = [{"license": license_of(f"{canonicalize_name(name)}=={version}", found)}]
    return component


def license_of(pin: str, found: Distribution | None) -> dict[str, str]:
    """What a package declares; else what its license file is; else, in SPDX's word, that nobody asserts anything."""
    if found is None:
        declared = tomllib.loads(_OF_OTHERS.read_text()).get(pin)
        return {"name": NOT_KNOWN} if declared is None else {"id": declared, "acknowledgement": "declared"}
    if name := " ".join((found.metadata.get("License") or "").split()):
        return {"name": name[:_MAX_NAME], "acknowledgement": "declared"}
    texts = [
        str(one.locate().read_text(errors="replace")) for one in found.files or () if _LICENSE_FILE.search(str(one))
    ]
    concluded = {known for known in map(license_of_text, texts) if known is not None}
    return {"id": concluded.pop(), "acknowledgement": "concluded"} if len(concluded) == 1 else {"name": NOT_KNOWN}


def license_of_text(text: str) -> str | None:
    """The SPDX name of a license by sentences of its text that no other has; None where it is none of these."""
    said = " ".join(text.split()).lower()
    return next((name for name, sentences in _SENTENCES.items() if all(one in said for one in sentences)), None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
