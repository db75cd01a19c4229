from scaffolding_ext import DynasorCoTController, MajorityVoteController, ScaffoldingLlm, TRTLLMWorker

if __name__ == "__main__":  # TensorRT-LLM starts processes that import this file
    worker = TRTLLMWorker("/models/target", max_seq_len=8192)  # below 1.3 also an engine, by from_engine
    chain = DynasorCoTController(chunk_size=64, max_tokens=4096, sampling_params={"temperature": 0.6, "top_p": 0.95})
    vote = MajorityVoteController(chain, default_sample_num=8)
    with worker, ScaffoldingLlm(vote, {"generation": worker}, seed=0) as llm:
        for result in llm.generate(["What is 17 * 23?", "What is 23 * 29?"]):
            print(result.answer, result.exit_reason, result.program.ledger.total.decoded)
