#!/usr/bin/env python3
"""Writes events.tfevents beside this script with TensorBoard's own classes.

Made with Python 3.11.7, tensorboard 2.21.0, protobuf 7.36.2, numpy 2.4.6. The bytes are committed; run this only to
change them. `make_golden.py FOLDER` instead prints what TensorBoard reads from the event files of a folder.
"""
import pathlib
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.summary.writer.record_writer import RecordWriter

if len(sys.argv) > 1:
    events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    for tag in events.Tags()["scalars"]:
        print(tag, [(e.step, e.value) for e in events.Scalars(tag)])
    for tag in events.Tags()["histograms"]:
        print(tag, [(e.step, list(e.histogram_value.bucket)) for e in events.Histograms(tag)])
    sys.exit()

histogram = HistogramProto(min=-0.5, max=2.5, num=7, sum=6, sum_squares=10, bucket_limit=[0.5, 1.5, 2.5], bucket=[3, 2, 2])
values = [
    Summary.Value(tag="lm loss", simple_value=2.5),
    Summary.Value(tag="num-zeros", simple_value=0),
    Summary.Value(tag="expert-load/layer 1", histo=histogram),
]
with open(pathlib.Path(__file__).parent / "events.tfevents", "wb") as file:
    writer = RecordWriter(file)
    for event in [
        Event(wall_time=1730000000.25, file_version="brain.Event:2"),
        Event(wall_time=1730000000.25, step=301, session_log=SessionLog(status=SessionLog.START)),
        Event(wall_time=1730000001.5, step=301, summary=Summary(value=values)),
        Event(wall_time=1730000002.5, summary=Summary(value=[Summary.Value(tag="x" * 200, simple_value=-1e-30)])),
    ]:
        writer.write(event.SerializeToString())
