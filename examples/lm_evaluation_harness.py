"""A stack as a model of lm-evaluation-harness: a custom task on local data, scored by the harness.

    pip install '.[hf,lm-eval]'
    python examples/lm_evaluation_harness.py [FOLDER]

The harness writes its results into the folder, next to our ledger of every request.
"""

import sys
from pathlib import Path

from lm_eval.__main__ import cli_evaluate

import scaffolding_ext.plugins.lm_eval  # noqa: F401  # makes the model known to the harness

TASK = """
task: made_up_arithmetic
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: []}}
filter_list:
  - name: boxed
    filter:
      - {{function: regex, regex_pattern: 'boxed\\{{(-?\\d+)'}}
      - {{function: take_first}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""

if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/lm_eval").resolve()
    (folder / "tasks").mkdir(parents=True, exist_ok=True)
    rows = Path(__file__).with_name("problems.jsonl").resolve()
    (folder / "tasks" / "made_up_arithmetic.yaml").write_text(TASK.format(rows=rows), encoding="utf-8")
    sys.argv[1:] = [
        *("--model", "scaffolding_ext"),
        *("--model_args", f"config=configs:dynasor_cot,seed=0,ledger_path={folder / 'ledgers.jsonl'}"),
        *("--tasks", "made_up_arithmetic", "--include_path", str(folder / "tasks")),
        *("--output_path", str(folder), "--limit", "4"),
    ]
    cli_evaluate()
