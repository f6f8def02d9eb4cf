#!/usr/bin/env python3
"""Writes beside this script what lm-evaluation-harness makes of the tasks in tasks/ with a tiny random model: model/ (as
transformers saves it, with a tokenizer), the rows in tasks/data, and expected.json: of each task the log-likelihoods of
all answers, whether they are greedy, and the metrics with their standard errors; of each group its metrics.

Made with Python 3.11, lm_eval 0.4.13, torch 2.15.0 (CPU), transformers 5.23.0, tokenizers 0.23.3, datasets 5.2.0,
float32. The bytes are committed; run this only to change them.
"""
import json
import os
import pathlib
import random

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
TASKS = HERE / "tasks"
THINGS = "ship river stone lamp bread king garden winter clock horse café naïve Øre 東京 salt glass road wool".split()
DEEDS = ["is made of", "was lost near", "belongs to", "turns into", "is older than", "cannot hold", "is found below"]


def sentence(draw):
    return f"the {draw.choice(THINGS)} {draw.choice(DEEDS)} the {draw.choice(THINGS)}"


def write(name, rows):
    (TASKS / "data").mkdir(exist_ok=True)
    (TASKS / "data" / name).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def make_rows():
    draw = random.Random(5)
    science = []
    for i in range(32):
        labels = ["1", "2", "3", "4"] if i % 7 == 0 else list("ABCDE"[:3 + i % 3])
        science.append({"id": f"q{i}", "question": f"Why is it said that {sentence(draw)}?",
                        "choices": {"text": [sentence(draw) for _ in labels], "label": labels},
                        "answerKey": draw.choice(labels)})
    write("science-train.jsonl", science[20:])
    write("science-test.jsonl", science[:20])
    write("endings.jsonl", [{"query": f"{sentence(draw)}, and then".capitalize(),
                             "endings": [" ".join(sentence(draw) for _ in range(draw.randrange(1, 4))) for _ in range(4)],
                             "label": str(draw.randrange(4))} for _ in range(20)])
    exam = [{"question": f" Which of these {sentence(draw)}? ", "subject": "shipping",
             "choices": [draw.choice(THINGS) for _ in range(4)], "answer": draw.randrange(4)} for _ in range(17)]
    write("exam-dev.jsonl", exam[12:])
    write("exam-test.jsonl", exam[:12])
    # The right answers are a list; a row has none.
    write("pairs.jsonl", [{"goal": "" if i % 3 == 0 else f"It's \"{sentence(draw)}\"", "sol1": sentence(draw),
                           "sol2": draw.choice(THINGS) + "'s", "gold": [0, 1] if i == 4 else [i % 2]}
                          for i in range(10)])


def make_model():
    draw = random.Random(3)
    text = [sentence(draw) for _ in range(400)] + ["Question: Why is it said that", "Answer: A. B. C. D.\n\n"] * 20
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=384, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    folder = HERE / "model"
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>",
                                         eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=16, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, intermediate_size=24,
                                      max_position_embeddings=160, tie_word_embeddings=True, bos_token_id=0,
                                      eos_token_id=1, pad_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    for tensor in model.parameters():
        tensor.data = torch.randn(tensor.shape) * 0.3 + (1 if tensor.dim() == 1 else 0)
    model.save_pretrained(folder)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def make_likely_words(model, tokenizer):
    """Rows half of whose targets are what the model says itself."""
    draw, rows = random.Random(9), []
    while len(rows) < 16:
        context, own = sentence(draw), len(rows) % 2 == 0
        ids = tokenizer(context, return_tensors="pt").input_ids
        with torch.no_grad():
            said = tokenizer.decode(model(ids).logits[0, -1].argmax()) if own else " " + draw.choice(THINGS)
        whole = tokenizer(context + said).input_ids
        if own and (len(whole) != ids.shape[1] + 1 or "\ufffd" in said or not said.strip()):
            continue
        rows.append({"text": context, "last": said})
    write("words.jsonl", rows)


def main():
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    make_rows()
    model, tokenizer = make_model()
    make_likely_words(model, tokenizer)
    os.chdir(TASKS)  # where data_files are
    names = ["science", "endings", "likely_word", "pairs", "exams"]
    found = lm_eval.simple_evaluate(model=HFLM(pretrained=str(HERE / "model"), dtype="float32", device="cpu",
                                               batch_size=1),
                                    tasks=names, task_manager=TaskManager(include_path=str(TASKS),
                                                                          include_defaults=False),
                                    bootstrap_iters=10, log_samples=True)
    expected = {"results": {}, "groups": {}}
    keep = lambda scores: {key: value for key, value in scores.items() if key.endswith(",none")
                           and not key.startswith("perplexity_stderr")}  # of bootstrap samples
    for task, samples in found["samples"].items():
        samples = sorted(samples, key=lambda one: one["doc_id"])
        expected["results"][task] = {
            "scores": keep(found["results"][task]),
            "contexts": [one["arguments"]["gen_args_0"]["arg_0"] if isinstance(one["arguments"], dict)
                         else one["arguments"][0][0] for one in samples],
            "loglikelihoods": [[float(r[0][0]) for r in one["resps"]] for one in samples],
            "greedy": [[str(r[0][1]) == "True" for r in one["resps"]] for one in samples]}
    for group, scores in found.get("groups", {}).items():
        expected["groups"][group] = keep(scores)
    (HERE / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n")
    for name, one in expected["results"].items():
        print(name, one["scores"], sum(map(sum, one["greedy"])), "greedy")
    print(expected["groups"])


main()
