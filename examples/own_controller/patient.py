from glance import GlanceController

from scaffolding_ext.protocol import Controller
from scaffolding_ext.registry import controllers


@controllers.register("PatientGlanceController")
class PatientGlanceController(GlanceController):
    """Trusts its guesses only if five of them agree."""

    def __init__(self, generation_controller: Controller, max_answer_tokens: int = 16) -> None:
        super().__init__(generation_controller, num_guesses=5, max_answer_tokens=max_answer_tokens)
