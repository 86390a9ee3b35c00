"""Is every error in the one table, in OpenAI's shape, and as the page says?"""

import re
from pathlib import Path

from berth.gateway.errors import BY_CODE, FINAL_REFUSALS, TABLE, Refused, Retry, reference

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "errors.md"
SOURCES = ROOT / "operator" / "src" / "berth" / "gateway"


def test_the_page_is_printed_from_the_table():
    assert PAGE.read_text() == reference()


def test_every_code_is_used_and_every_use_is_in_the_table():
    text = "".join(path.read_text() for path in SOURCES.glob("*.py") if path.name != "errors.py")
    used = set(re.findall(r'Refused\(\s*"(\w+)"', text)) | set(
        re.findall(r'_no\(served, "(\w+)"', text)
    )
    used |= set(FINAL_REFUSALS.values()) | set(re.findall(r'code = "(\w+)" if', text))
    assert used == set(BY_CODE)


def test_retry_after_is_an_integer_of_at_least_one_or_absent():
    for kind in TABLE:
        for seconds in (None, 0, 7):
            refused = Refused(kind.code, "x", retry_after=seconds)
            given = refused.headers().get("Retry-After")
            if kind.retry is Retry.NEVER:
                assert given is None
            else:
                assert int(given or 0) >= 1
            assert set(refused.error()) == {"message", "type", "param", "code"}


def test_the_status_says_whose_fault_it_is():
    for kind in TABLE:
        assert (kind.type == "server_error") == (kind.status >= 500)
