"""Imports point down only: the order of the floors, and who may know torch, transformers and plotly."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import qkprism

SOURCE = Path(__file__).parent.parent / "src" / "qkprism"

# From the ground up. A module may import what stands on a lower floor, or earlier on its own.
FLOORS = [
    [
        "errors",
        "packing",
        "ranks",
        "memory",
        "options",
        "notes",
        "progress",
        "encoding",
        "heads",
        "controls",
        "findings",
    ],
    [f"runs.{name}" for name in ("files", "locks", "stopping", "folder", "store", "catalogue", "sharing")],
    ["figures.theme", "figures.saving", "figures.words", "figures.panels", "figures.grid", "figures"],
    [
        "explorer.assets",
        "explorer.answers",
        "explorer.mail",
    ],  # they import no results, so that results can have `.to_html()`
    [
        "contrasts.markup",
        "contrasts.fitting",
        "contrasts.tables",
        "contrasts.examples",
        "contrasts.contrast",
        "contrasts",
        "contrasts.words",
        "contrasts.values",
        "contrasts.sandbox",
        "contrasts.lines",
        "contrasts.templates",
        "contrasts.shelves",
        "contrasts.drawing",
        "contrasts.tasks",
        "contrasts.sources",
        "contrasts.balance",
        "contrasts.checks",
    ],
    [
        "core.by_value",
        "core.moments",
        "core.groups",
        "core.covariance",
        "core.metrics",
        "core.rank",
        "core.evidence",
        "core.feature",
        "core.projectors",
        "core.conditional",
        "core.decomposition",
        "core.means",
        "core.scatter",
        "core.edits",
        "core.rows",
        "core.effect_sums",
        "core.splitting",
        "core.row_split",
        "core.terms",
        "core.variation",
    ],
    [
        "results.stored",
        "results.features",
        "results.scores",
        "results.effects",
        "results.attribution",
        "results.validation",
        "results.projections",
        "results.interaction",
        "results.words",
    ],
    ["subspaces.modulation"],
    [
        "subspaces.comparison",
        "subspaces.conditions",
        "subspaces.spaces",
        "subspaces.intervention",
        "subspaces.separation",
        "subspaces.crossing",
    ],
    ["capture.source", "capture.vectors", "capture.vector_source"],
    [
        "toy.task",
        "toy.samples",
        "toy.ceiling",
        "toy.bank",
        "toy.cells",
        "toy.stack",
        "toy.store",
        "toy.training",
        "toy.contrasts",
        "toy.truth",
        "toy.recovery",
        "toy.interventions",
        "toy.limits",
        "toy.clouds",
        "toy.portrait",
        "toy.results",
        "toy.claims",
        "toy.studying",
        "toy",
    ],
    [
        "models.places",
        "models.quick",
        "models.devices",
        "models.calls",
        "models.split",
        "models.tap",
        "models.probe",
        "models.chat",
        "models.encoding",
        "models.batches",
        "models.rotation",
        "models.model",
    ],
    ["models.continuation"],
    ["models.loading"],
    [
        "capture.texts",
        "capture.batching",
        "capture.streaming",
        "capture.model_source",
        "capture.vector_batches",
        "capture.readers",
    ],
    [
        "verbs.inputs",
        "verbs.aims",
        "verbs.counterfactuals",
        "verbs.decompose",
        "verbs.find_heads",
        "verbs.plan",
        "verbs.outcomes",
        "verbs.intervene",
        "verbs.attribute",
        "verbs.truths",
        "verbs.validate",
        "verbs.project",
        "verbs.vectors",
    ],
    [
        "studies.jobs",
        "studies.presets",
        "studies.binding_prompts",
        "studies.binding_study",
        "studies.binding_figures",
        "studies.binding_claims",
        "studies.binding",
        "studies.comparing",
        "studies.shelf_pass",
        "studies.shelf_result",
        "studies.shelf",
        "studies.categories",
        "studies.filter",
        "studies.filter_claims",
        "studies",
    ],
    [
        "atlas.windows",
        "atlas.sums",
        "atlas.atlas",
        "atlas.words",
        "atlas.spans",
        "atlas.rows",
        "atlas.coverage",
        "atlas.signature",
        "atlas.independent",
        "atlas.components",
        "atlas.survey",
        "atlas.headvis_data",
        "atlas.headvis",
        "atlas.shares",
        "atlas.naming",
        "atlas.explanation",
        "atlas.explain",
        "atlas",
    ],
    [
        "explorer.draft",
        "explorer.jobs",
        "explorer.trial",
        "explorer.studies",
        "explorer.opening",
        "explorer.columns",
        "explorer.proofs",
        "explorer.arcs",
        "explorer.clouds",
        "explorer.evidence",
        "explorer.run_answers",
        "explorer.library",
        "explorer.report",
        "explorer.what_if",
        "explorer.desk",
        "explorer.keep",
        "explorer.guard",
        "explorer.app",
        "explorer",
    ],
    [""],
    [
        "cli.settings",
        "cli.inputs",
        "cli.app",
        "cli.printing",
        "cli.reports",
        "cli.marked",
        "cli.contrasts",
        "cli.features",
        "cli.atlas",
        "cli.demo",
        "cli.studies",
        "cli.toy",
        "cli.runs",
        "cli.doctor",
        "cli",
        "__main__",
    ],
]
ORDER = {name: (floor, place) for floor, names in enumerate(FLOORS) for place, name in enumerate(names)}
FORBIDDEN = {
    "errors": {"torch", "transformers", "plotly"},
    "runs.files": {"torch", "transformers", "plotly"},
    "options": {"torch", "transformers", "plotly", "numpy"},
    "encoding": {"torch", "transformers", "plotly", "numpy"},
    "heads": {"torch", "transformers", "plotly"},
    "contrasts": {"torch", "transformers", "plotly"},
    "core": {"transformers"},
    "results": {"transformers"},
    "subspaces": {"transformers"},
    "toy": {"transformers", "plotly"},
    "figures": {"transformers"},
}


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        yield ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix("__init__").rstrip("."), path


def imports(path):
    """What a module imports when it runs: not what only a type checker reads."""

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module
            if node.module.startswith("qkprism"):
                yield from (
                    f"{node.module}.{a.name}"
                    for a in node.names
                    if (SOURCE.parent / Path(*node.module.split("."), f"{a.name}.py")).exists()
                )
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    yield from visit(ast.parse(path.read_text()))


def place(name):
    for known in (name, name.split(".")[0]):
        if known in ORDER:
            return ORDER[known]
    raise AssertionError(f"{name} has no floor: add it to FLOORS in {Path(__file__).name}")


@pytest.mark.parametrize(("name", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_imports__point_down(name, path):
    if name in ("core", "results", "subspaces", "models", "capture", "verbs"):
        assert not path.read_text().strip()
        return
    for imported in imports(path):
        if (
            imported.split(".")[0] == "qkprism"
            and (SOURCE.parent / Path(*imported.split("."))).with_suffix(".py").exists()
        ):
            assert place(imported.removeprefix("qkprism").lstrip(".")) <= place(name), f"{name} imports {imported}"
        for room, packages in FORBIDDEN.items():
            if name.split(".")[0] == room:
                assert imported.split(".")[0] not in packages, f"{name} imports {imported}"


def test_command_line__imports_nothing_heavy_before_it_needs_it():
    heavy = {"torch", "transformers", "pandas", "plotly", "numpy"}
    script = f"import sys, qkprism.cli; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"


def test_package__finds_the_names_that_it_tells_type_checkers_of():
    body = ast.parse((SOURCE / "__init__.py").read_text()).body
    told = next(node for node in body if isinstance(node, ast.If))
    names = {alias.name: node.module for node in told.body for alias in node.names}
    assert sorted(names) == sorted(qkprism.__all__)
    for name, module in names.items():
        home = importlib.import_module(f"qkprism.{name}" if module == "qkprism" else module)
        assert getattr(qkprism, name) is (home if module == "qkprism" else getattr(home, name))
    assert set(qkprism.__all__) <= set(dir(qkprism))
    with pytest.raises(AttributeError, match="no attribute 'decompoze'"):
        qkprism.decompoze  # noqa: B018
