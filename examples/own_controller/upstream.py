from glance import GlanceController
from tensorrt_llm.scaffolding import ScaffoldingLlm

from scaffolding_ext import HuggingFaceWorker, NativeGenerationController, Prompting, WorkerTag

controller = GlanceController(NativeGenerationController({"temperature": 0.7, "max_tokens": 600}))
controller.prompting = Prompting.for_model("tinylm/draft")
workers = {WorkerTag.GENERATION: HuggingFaceWorker("tinylm/draft")}  # or upstream's own workers
controller.bind(workers)

llm = ScaffoldingLlm(controller, workers)
print(llm.generate("Start with 5. Apply a+3,b-2. Find the total.").outputs[0].text)
llm.shutdown(shutdown_workers=True)
