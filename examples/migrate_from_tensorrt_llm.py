"""TensorRT-LLM's Scaffolding example (run_majority_vote), ported: comments mark the lines that change.

    python examples/migrate_from_tensorrt_llm.py                      # without a GPU: the embedded model
    python examples/migrate_from_tensorrt_llm.py /models/r1-distill   # with TensorRT-LLM: the same checkpoint as there

You gain answers compared by value, an early stop, seeds, errors instead of empty texts, and a count of every token.
"""

import sys

# from tensorrt_llm.scaffolding import MajorityVoteController, NativeGenerationController, ScaffoldingLlm, TRTLLMWorker
from scaffolding_ext import (
    HuggingFaceWorker,
    MajorityVoteController,
    NativeGenerationController,
    ScaffoldingLlm,
    TRTLLMWorker,
)

prompts = [
    "Start with 16. Apply d-4,e-7,f+5,g+2. Find the total.",
    "Start with 10. Apply c-8,d+8. Find the total.",
]


def main() -> None:
    # `LLM` starts processes that import this file again, so nothing runs outside of main().
    # llm_worker = TRTLLMWorker.init_with_new_llm(model_dir, backend="pytorch", max_batch_size=32, max_num_tokens=4096)
    llm_worker = TRTLLMWorker(sys.argv[1]) if len(sys.argv) == 2 else HuggingFaceWorker("tinylm/target")

    # unchanged, except that an unknown sampling field is an error
    prototype_generation_controller = NativeGenerationController(
        sampling_params={"max_tokens": 1200, "temperature": 0.9}
    )

    # unchanged, except that it stops once the winner is settled; allocation=None draws all samples, like upstream
    prototype_majority_vote_controller = MajorityVoteController(
        generation_controller=prototype_generation_controller, default_sample_num=3
    )

    # unchanged: its tag is the same member, by value; seed=0 is new
    llm = ScaffoldingLlm(
        prototype_majority_vote_controller, {NativeGenerationController.WorkerTag.GENERATION: llm_worker}, seed=0
    )
    results = llm.generate(prompts)
    for prompt, result in zip(prompts, results, strict=True):
        # print(result.outputs[0].text)
        print(f"{prompt} -> {result.answer} ({result.program.ledger.total.decoded} tokens decoded)")
    llm.shutdown(shutdown_workers=True)


if __name__ == "__main__":
    main()
