from glance import GlanceController

from scaffolding_ext import HuggingFaceWorker, NativeGenerationController, Prompting, ScaffoldingLlm, WorkerTag

thinking = NativeGenerationController({"temperature": 0.7, "max_tokens": 600})
controller = GlanceController(thinking)
controller.prompting = Prompting.for_model("tinylm/draft")
workers = {WorkerTag.GENERATION: HuggingFaceWorker("tinylm/draft")}

with ScaffoldingLlm(controller, workers, seed=0, owns_workers=True) as llm:
    result = llm.generate("Start with 5. Apply a+3,b-2. Find the total.")
    print(result.outputs[0].text)
    print(result.answer, result.exit_reason)
    print(result.program.ledger.to_json())
    print(result.program.trace)
