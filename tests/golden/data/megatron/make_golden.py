#!/usr/bin/env python3
"""Writes gpt_data.json beside this script: what Megatron-Core's own dataset code makes of 30 random combinations of
sizes, splits, blends, seeds and epochs. Checksums of its indices and samples, with short excerpts. Likewise
exhaustive.json: 12 combinations in which it reads every validation sample once (Megatron-LM's --full-validation), and
the blending indices of 40 lists of sizes.

Made with megatron-core 0.16.1 (its compiled helpers_cpp), numpy 2.4.6, torch 2.15.0, Python 3.11:
    python make_golden.py
"""
import json
import pathlib
import random
import struct
import tempfile

import numpy
from megatron.core.datasets import helpers_cpp
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.utils import get_blend_from_list

HERE = pathlib.Path(__file__).parent
CASES = 30
MOST_PARTS = 3  # of a blend, whose indices are compared; those of all make its samples
READ = 40  # samples of each split whose tokens are compared
U64 = (1 << 64) - 1


def lengths_of(dataset):
    ids = numpy.arange(dataset["sequences"], dtype=numpy.uint64)
    mixed = ((ids + 1) * 2654435761 + dataset["salt"] * 40503) & 0xFFFFFFFF
    return ((mixed >> numpy.uint64(7)) % (dataset["longest"] + 1)).astype(numpy.int32)


def write(prefix, dataset):
    lengths = lengths_of(dataset)
    tokens = []
    for i, n in enumerate(lengths):
        tokens += [1 + (i * 31 + j * 7 + dataset["salt"] * 13) % 60000 for j in range(n - 1)] + [0] * int(n > 0)
    pathlib.Path(f"{prefix}.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    pointers = numpy.concatenate(([0], numpy.cumsum(lengths[:-1], dtype=numpy.int64))) * 2
    pathlib.Path(f"{prefix}.idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1)
        + lengths.tobytes()
        + pointers.astype(numpy.int64).tobytes()
        + numpy.arange(len(lengths) + 1, dtype=numpy.int64).tobytes()
    )


def checksum(values):
    values = numpy.asarray(values).reshape(-1).astype(numpy.int64).astype(numpy.uint64)
    with numpy.errstate(over="ignore"):
        odd = (2 * numpy.arange(values.size, dtype=numpy.uint64) + 1) * numpy.uint64(0x9E3779B97F4A7C15)
        mixed = odd ^ (odd >> numpy.uint64(29))
        return f"{int(((values + numpy.uint64(1)) * mixed).sum(dtype=numpy.uint64)) & U64:016x}"


def epochs_of(dataset, tokens, count=GPTDataset._get_num_epochs):
    if tokens == 0:
        raise ValueError("an empty split, which Megatron-Core would count epochs of for ever")
    return count(dataset, tokens)


GPTDataset._get_num_epochs = epochs_of


class Tokenizer:
    eod = 0
    vocab_size = 60001
    unique_identifiers = {"class": "Tokenizer"}


def indices_of(dataset):
    return {
        "document": [dataset.document_index.size, checksum(dataset.document_index)],
        "place": checksum(dataset.sample_index[:, 0]),
        "offset": checksum(dataset.sample_index[:, 1]),
        "shuffle": [dataset.shuffle_index.size, checksum(dataset.shuffle_index)],
        "first": [int(i) for i in dataset.document_index[:3]] + [int(i) for i in dataset.shuffle_index[:3]],
    }


def part_of(dataset):
    if dataset is None:
        return None
    blended = isinstance(dataset, BlendedDataset)
    parts = dataset.datasets[:MOST_PARTS] if blended else [dataset]
    part = {"size": len(dataset), "parts": [indices_of(one) for one in parts]}
    if blended:
        part["blend"] = [checksum(dataset.dataset_index), checksum(dataset.dataset_sample_index)]
    samples = [dataset[i] for i in range(min(len(dataset), READ))]
    for name in ("tokens", "labels", "position_ids", "loss_mask"):
        part[name] = checksum(numpy.concatenate([sample[name].numpy() for sample in samples]))
    # Where what each token may attend to begins.
    length = samples[0]["tokens"].numel()
    seen = [(~sample["attention_mask"][0]).sum(dim=1).numpy() for sample in samples]
    part["attends_from"] = checksum(numpy.concatenate([numpy.arange(length) + 1 - count for count in seen]))
    return part


def blend_words(rng, datasets, weighted):
    words = []
    for d in datasets:
        words += [str(rng.choice([rng.randint(1, 99), round(rng.random() + 0.01, 3)]))] if weighted else []
        words.append(f"d{d}")
    return words


def draw(rng, number):
    several = 140 if number == 9 else [1, 1, 1, 2, 3, 5, 4, 2, 20, 7][number % 10]
    datasets = [
        {
            "sequences": rng.randint(20, 400) if several < 9 else rng.randint(60, 120),
            "longest": rng.choice([5, 30, 100] if several < 9 else [30]),
            "salt": rng.randint(0, 999),
        }
        for _ in range(several)
    ]
    case = {
        "seed": rng.randint(0, 2**32 - 1) if number % 4 == 0 else rng.randint(1, 9999),
        "sequence_length": rng.choice([4, 7, 16, 33]),
        "samples": [rng.randint(20, 4000), rng.randint(5, 200), rng.randint(5, 50)]
        if several < 9
        else [rng.randint(8000, 12000), rng.randint(2000, 4000), rng.randint(1000, 2000)],
        "reset_position_ids": rng.random() < 0.5,
        "reset_attention_mask": rng.random() < 0.5,
        "eod_mask_loss": rng.random() < 0.5,
        "datasets": datasets,
    }
    names = list(range(several))
    if number % 10 in (4, 7):
        parts = [sorted(rng.sample(names, rng.randint(1, several))) for _ in range(3)]
        case["blend_of"] = [blend_words(rng, part, rng.random() < 0.7) for part in parts]
        case["blend_of"][2] = rng.choice([None, case["blend_of"][2]])
    else:
        case["split"] = rng.choice(
            ["99,1,0", "969,30,1", "969, 30, 1", "0.9,0.1", "8,1,1", "1,1,1", "90,5,5"][0 if several < 9 else 4 :]
        )
        case["blend"] = blend_words(rng, names, number % 10 in (2, 3, 5, 8, 9) and number != 15)
    return case


def run(case):
    with tempfile.TemporaryDirectory() as folder:
        for d, dataset in enumerate(case["datasets"]):
            write(f"{folder}/d{d}", dataset)

        def blend(words):
            return words and get_blend_from_list([f"{folder}/{w}" if w.startswith("d") else w for w in words])

        config = GPTDatasetConfig(
            random_seed=case["seed"],
            sequence_length=case["sequence_length"],
            blend=blend(case.get("blend")),
            blend_per_split=[blend(words) for words in case["blend_of"]] if "blend_of" in case else None,
            split=case.get("split"),
            tokenizer=Tokenizer(),
            reset_position_ids=case["reset_position_ids"],
            reset_attention_mask=case["reset_attention_mask"],
            eod_mask_loss=case["eod_mask_loss"],
        )
        parts = BlendedMegatronDatasetBuilder(GPTDataset, case["samples"], lambda: True, config).build()
        return [part_of(part) for part in parts]


def draw_exhaustive(rng, number):
    """Validation samples: none. A shared blend, or one for each split, without weights where there is validation."""
    several = [1, 2, 3, 5, 9, 2][number % 6]
    case = {
        "seed": rng.randint(1, 9999),
        "sequence_length": rng.choice([4, 7, 16]),
        "samples": [rng.randint(20, 200), None, rng.randint(5, 20)],
        "reset_position_ids": False,
        "reset_attention_mask": rng.random() < 0.5,
        "eod_mask_loss": False,
        "datasets": [
            {"sequences": rng.randint(30, 300), "longest": rng.choice([20, 60]), "salt": rng.randint(0, 999)}
            for _ in range(several)
        ],
    }
    names = list(range(several))
    if number % 2:
        case["blend_of"] = [blend_words(rng, names, number % 3 > 0), blend_words(rng, names, False), None]
    else:
        case["split"] = rng.choice(["7,2,1", "1,1,1", "60,40,0"])
        case["blend"] = blend_words(rng, names, False)
    return case


def blending_of(sizes):
    dataset = numpy.zeros(sum(sizes), dtype=numpy.int16)
    sample = numpy.zeros(sum(sizes), dtype=numpy.int64)
    helpers_cpp.build_exhaustive_blending_indices(dataset, sample, numpy.array(sizes, dtype=numpy.int64), len(sizes))
    return {"sizes": sizes, "first": [int(d) for d in dataset[:8]], "blend": [checksum(dataset), checksum(sample)]}


def accepted(rng, count, drawn):
    cases = []
    while len(cases) < count:
        case = drawn(rng, len(cases))
        try:
            result = run(case)
        except (AssertionError, IndexError, ValueError, ZeroDivisionError) as error:  # Megatron-Core refuses it
            print("drawn again:", type(error).__name__, str(error)[:100])
            continue
        cases.append({**case, "parts": result})
    return cases


def lines_of(cases):
    return "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]"


def main():
    cases = accepted(random.Random(18), CASES, draw)
    (HERE / "gpt_data.json").write_text(lines_of(cases) + "\n")
    rng = random.Random(19)
    cases = accepted(rng, 12, draw_exhaustive)

    def size():
        return rng.choice([1, rng.randint(1, 9), rng.randint(1, 3000)])

    blends = [blending_of([size() for _ in range(rng.choice([1, 2, 3, 8, 40]))]) for _ in range(40)]
    (HERE / "exhaustive.json").write_text(f'{{"cases": {lines_of(cases)},\n"blends": {lines_of(blends)}}}\n')


main()
