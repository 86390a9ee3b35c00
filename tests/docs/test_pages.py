"""Do the pages hold: links, commands, examples, words?"""

import itertools
import re
import tomllib

import click
import pytest
import yaml

from berth.api.kinds import KINDS
from berth.cli.main import main
from berth.reasons import State
from docs.pages import FENCE, PAGES, ROOT, commands, objects
from generate.reference import generated

EACH_PAGE = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]
COMMANDS = [pytest.param(words, id=name) for name, words in commands()]
OBJECTS = [pytest.param(body, id=name) for name, body in objects()]


def prose(page):
    return FENCE.sub("", page.read_text())


def anchors(page):
    """What a heading is called in an address, as GitHub makes it."""
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", EACH_PAGE)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{target} leads nowhere"
        if anchor:
            assert anchor in set(anchors(found)), f"{target}: no such heading"


@pytest.mark.parametrize("page", EACH_PAGE)
def test_no_page_names_a_place_of_one_machine(page):
    text = page.read_text()
    assert not re.search(r"/(work|root|home/\w+)/", text)
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)


@pytest.mark.parametrize("page", EACH_PAGE)
def test_every_page_begins_with_its_one_title(page):
    lines = [line for line in prose(page).splitlines() if not line.startswith("<!--")]
    assert lines[0].startswith("# ")
    assert sum(line.startswith("# ") for line in lines) == 1


def test_every_page_is_in_the_table_of_contents():
    contents = (ROOT / "docs/README.md").read_text()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        path = str(page.relative_to(ROOT / "docs"))
        assert path == "README.md" or f"({path})" in contents, path


@pytest.mark.parametrize("path", sorted(generated()))
def test_what_is_generated_is_current(path):
    assert (ROOT / path).read_text() == generated()[path], "run `make gen`"


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_of_ours_takes_what_the_page_gives_it(words):
    if words[:2] == ["kubectl", "berth"]:
        words = words[1:]
    if words[0] != "berth":
        return
    command = main.get_command(None, words[1])
    assert command is not None, f"no command {words[1]}"
    with click.Context(command, info_name=words[1]) as context:
        command.parse_args(context, words[2:])


@pytest.mark.parametrize("words", COMMANDS)
def test_a_target_of_make_is_there(words):
    if words[0] == "make":
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        variables = re.findall(r"^([A-Z]+) \?=", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for word in words[1:]:
            name, is_variable, _ = word.partition("=")
            assert name in (variables if is_variable else targets)


def chart_values(words):
    """The names that ``--set`` gives."""
    for flag, value in itertools.pairwise(words):
        if flag == "--set":
            for part in re.split(r"(?<!\\),(?![^{]*\})", value):
                yield part.partition("=")[0]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_value_of_the_chart_is_there(words):
    values = yaml.safe_load((ROOT / "charts/berth/values.yaml").read_text())
    schema = yaml.safe_load((ROOT / "charts/berth/values.schema.json").read_text())
    for name in chart_values(words):
        first, *rest = name.split(".")
        if first == "settings":
            assert rest[0] in schema["properties"]["settings"]["properties"]
            continue
        node = values
        for part in (first, *rest):
            assert part in node, f"{name} is no value of the chart"
            node = node[part]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_file_that_a_command_names_is_there(words):
    for word in words:
        if re.match(r"(docs|charts|operator|runner-image|crds)/", word):
            assert (ROOT / word).exists(), word


def unknown(body, known, path=""):
    """Paths of fields that the type would silently ignore."""
    if isinstance(body, dict) and isinstance(known, dict):
        for name, value in body.items():
            if name in known:
                yield from unknown(value, known[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"


@pytest.mark.parametrize("body", OBJECTS)
def test_an_example_is_an_object_of_ours(body):
    cls = next(info.cls for info in KINDS if info.kind == body["kind"])
    parsed = cls.model_validate(body).model_dump(by_alias=True, mode="json")
    assert list(unknown(body["spec"], parsed["spec"])) == []


def test_every_state_is_explained():
    page = (ROOT / "docs/how-to/load-unload.md").read_text()
    assert [state for state in State if f"| `{state}` |" not in page] == []


def test_every_dependency_says_why():
    page = (ROOT / "docs/design/dependencies.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["project"]["dependencies"],
        *(name for extra in project["project"]["optional-dependencies"].values() for name in extra),
        *project["dependency-groups"]["dev"],
    ]
    names = {re.split(r"[\[<>=]", entry)[0] for entry in wanted} - {"berth-operator"}
    said = set(re.findall(r"[\w-]+", page))
    assert {name for name in names if name not in said and not name.startswith("types-")} == set()


def test_every_extra_is_of_a_program():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["project"]["optional-dependencies"]) <= set(main.list_commands(None))
