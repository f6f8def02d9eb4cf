#!/usr/bin/env python3
"""Writes webdataset.tar beside this script, as the package webdataset 1.0.2 does, and names.tar by Python's tarfile, with
the long names of both formats. The bytes are committed; run this only to add a file."""
import io
import pathlib
import tarfile

import webdataset

HERE = pathlib.Path(__file__).parent


def write_samples():
    with webdataset.TarWriter(str(HERE / "webdataset.tar"), mtime=0) as sink:
        sink.write({"__key__": "000/one", "txt": "first", "json": {"text": "of json", "caption": "a"}})
        sink.write({"__key__": "000/two", "json": {"text": "zweiter Text, Größe", "caption": "b"}, "jpg": b"\xff\xd8 no text"})
        sink.write({"__key__": "000/three", "jpg": b"\xff\xd8"})
        sink.write({"__key__": "000/four", "seg.txt": "not this", "txt": ""})
        sink.write({"__key__": "000/five", "json": {"messages": [{"role": "user", "content": "hi"},
                                                                 {"role": "assistant", "content": "yo"}]}})


def write_names():
    for name, form in (("names_gnu", tarfile.GNU_FORMAT), ("names_pax", tarfile.PAX_FORMAT), ("names_ustar", tarfile.USTAR_FORMAT)):
        with tarfile.open(HERE / f"{name}.tar", "w", format=form) as archive:
            folder = tarfile.TarInfo("folder")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
            link = tarfile.TarInfo("link.txt")
            link.type, link.linkname = tarfile.SYMTYPE, "a"
            archive.addfile(link)
            for i, base in enumerate(("s", "d" * 90)):
                info = tarfile.TarInfo("folder/" * 8 + f"{base}{i}.txt")
                data = f"text {i}".encode()
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    write_samples()
    write_names()
