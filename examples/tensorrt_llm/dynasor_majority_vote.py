from scaffolding_ext import DynasorGenerationController, MajorityVoteController, ScaffoldingLlm, TRTLLMWorker

if __name__ == "__main__":
    prompts = ["What is 17 * 23?", "What is 23 * 29?"]
    llm_worker = TRTLLMWorker.init_with_new_llm("/models/target", backend="pytorch", max_num_tokens=8192)

    dynasor_generation_controller = DynasorGenerationController(generation_dir="/models/target", max_tokens=4096)

    majority_vote_controller = MajorityVoteController(
        generation_controller=dynasor_generation_controller,
        default_sample_num=3,
    )

    llm = ScaffoldingLlm(
        prototype_controller=majority_vote_controller,
        workers={DynasorGenerationController.WorkerTag.GENERATION: llm_worker},
    )
    results = llm.generate(prompts)
    for result in results:
        print(result.outputs[0].text)
    llm.shutdown()
    llm_worker.shutdown()
