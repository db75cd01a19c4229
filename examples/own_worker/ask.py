from caching import CachingWorker

from scaffolding_ext import (
    DynasorCoTController,
    HuggingFaceWorker,
    NativeGenerationController,
    ScaffoldingLlm,
    WorkerTag,
)

plain = NativeGenerationController({"temperature": 0.7, "max_tokens": 600})
for controller in (plain, DynasorCoTController(600, sampling_params={"temperature": 0.7})):
    with (
        CachingWorker(HuggingFaceWorker("tinylm/draft")) as worker,
        ScaffoldingLlm(controller, {WorkerTag.GENERATION: worker}, seed=0) as llm,
    ):
        for _ in range(2):
            result = llm.generate("Start with 5. Apply a+3,b-2. Find the total.", sample_id="total")
            print(result.answer, result.program.ledger.total)
