"""What tokens cost, as a page and a report tell it."""

from collections.abc import Callable

import pytest

from kvbudget.errors import BadValueError
from kvbudget.planner.advice.cost import UNKNOWN, cost_lines
from kvbudget.planner.request import Plan
from kvbudget.report.priced import Priced, priced, priced_json, priced_section, priced_told
from kvbudget.units import Tokens

MakePlan = Callable[..., Plan]


def test_every_number_is_told_with_how_it_is_written(plan_named: MakePlan) -> None:
    found = priced(plan_named("fits"), 1234.5)
    assert found.cost is not None
    assert found.cost.lengths == "given"
    told = priced_told(found)
    assert (told["known"], told["hour_text"], told["price_text"]) == (True, "1,234.50", "1 GPU × 1234.5")
    assert told["lengths_text"] == f"{found.cost.prompt_tokens:,.0f} + {found.cost.output_tokens:,.0f}"
    assert told | {"rates": priced_json(found)["rates"]} == told | priced_json(found)
    section = priced_section(found)
    assert (section.title, section.lines) == ("Cost", tuple(cost_lines(found.cost)))


def test_what_is_not_known_is_told_with_the_reason(plan_named: MakePlan) -> None:
    nothing = priced(plan_named("given"), 2.0)
    assert nothing == Priced(None, UNKNOWN)
    assert priced_told(nothing) == priced_json(nothing) == {"known": False, "why": UNKNOWN}
    assert priced_section(nothing).lines == (UNKNOWN,)


def test_requests_of_which_none_would_be_served_have_no_cost_but_a_reason(plan_named: MakePlan) -> None:
    plan = plan_named("fits")
    found = priced(plan._replace(pool=plan.pool._replace(max_model_len=Tokens(2))), 2.0)
    assert found.cost is None
    assert "longer than max_model_len 2" in found.why


def test_a_price_that_is_none_is_refused(plan_named: MakePlan) -> None:
    with pytest.raises(BadValueError):
        priced(plan_named("fits"), 0.0)
