#!/usr/bin/env python3
"""Writes mixtral.gguf in parts of 8 tensors at most, split/mixtral-0000K-of-0000N.gguf, as gguf-py's writer does.

Made with Python 3.11 and gguf 0.19.0. The bytes are committed; run this only to change them.
"""
import pathlib

import gguf

HERE = pathlib.Path(__file__).parent
reader = gguf.GGUFReader(HERE / "mixtral.gguf")
out = HERE / "split"
out.mkdir(exist_ok=True)
writer = gguf.GGUFWriter(out / "mixtral.gguf", reader.get_field("general.architecture").contents(), split_max_tensors=8)
for field in reader.fields.values():
    if field.name == "general.architecture" or field.name.startswith("GGUF."):
        continue
    kind = field.types[0]
    writer.add_key_value(field.name, field.contents(), kind,
                         field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
for tensor in reader.tensors:
    writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
