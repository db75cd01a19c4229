from tensorrt_llm.scaffolding import ScaffoldingLlm, TRTLLMWorker

from scaffolding_ext import DynasorCoTController, MajorityVoteController, Prompting, completion_of

if __name__ == "__main__":
    worker = TRTLLMWorker.init_with_new_llm("/models/target", backend="pytorch", max_batch_size=32, max_num_tokens=8192)
    chain = DynasorCoTController(chunk_size=64, max_tokens=4096, sampling_params={"temperature": 0.6, "top_p": 0.95})
    vote = MajorityVoteController(chain, default_sample_num=8)
    workers = {"generation": worker}
    vote.prompting = Prompting.for_model("/models/target")  # upstream's worker does not name its model
    vote.bind(workers)
    llm = ScaffoldingLlm(vote, workers)
    completion = completion_of(llm.generate("What is 17 * 23?"))
    print(completion.answer, completion.exit_reason, completion.program.ledger.total.decoded)
    llm.shutdown(shutdown_workers=True)
