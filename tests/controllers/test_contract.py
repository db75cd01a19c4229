"""Every controller of the package keeps the contract, in each of its modes."""

import pytest

from scaffolding_ext import registry
from scaffolding_ext.contract import CONTROLLER_CHECKS
from scaffolding_ext.controllers.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.dynasor_cot import DynasorCoTController, DynasorGenerationController
from scaffolding_ext.controllers.native_generation import NativeGenerationController

CONTROLLERS = {
    "native": NativeGenerationController,
    "native_streaming": lambda: NativeGenerationController(streaming=True),
    "dynasor_stream": lambda: DynasorCoTController(chunk_size=24),
    "dynasor_streaming": lambda: DynasorCoTController(chunk_size=24, streaming=True),
    "dynasor_chunk": lambda: DynasorCoTController(chunk_size=24, mode="chunk"),
    "dynasor_chunk_in_turn": lambda: DynasorCoTController(chunk_size=24, mode="chunk", overlap=False),
    "dynasor_window": lambda: DynasorCoTController(chunk_size=24, rule="window", window_share=0.5),
    "dynasor_geometric": lambda: DynasorCoTController(chunk_size=8, probe_spacing="geometric"),
    "dynasor_to_the_end": lambda: DynasorCoTController(chunk_size=24, certainty_threshold=99),
    "dynasor_out_of_budget": lambda: DynasorCoTController(max_tokens=60, chunk_size=24, certainty_threshold=99),
    "dynasor_alias": lambda: DynasorGenerationController(chunk_size=24),
    "budget_cut": lambda: BudgetForcingController(40),
    "budget_unused": lambda: BudgetForcingController(4000),
}


@pytest.mark.parametrize("check", CONTROLLER_CHECKS)
@pytest.mark.parametrize("name", CONTROLLERS)
def test_contract(name, check):
    check(CONTROLLERS[name])


def test_no_controller_is_left_out():
    checked = {type(make()) for make in CONTROLLERS.values()}
    known = {registry.controllers.resolve(name) for name in registry.controllers.names()}
    assert {factory for factory in known if factory.__module__.startswith("scaffolding_ext.")} <= checked
