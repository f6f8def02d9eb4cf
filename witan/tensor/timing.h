// How long work takes on a stream's device: the device's own clock on a GPU, Stream::now() elsewhere.
#pragma once

#include <functional>
#include <vector>

#include "witan/tensor/device.h"

namespace witan {

// The median over samples of the seconds of a call, after calls that warm up. A sample is as many calls in a row as
// last a fifth of a millisecond, so that neither clocks nor launches count; there are as many samples as fit into
// `budget` seconds, and five at least. Waits for the stream.
double median_seconds(Stream& stream, double budget, const std::function<void()>& call);

// Seconds of each of so many calls: for what several ranks must call equally often. Waits for the stream.
std::vector<double> time_calls(Stream& stream, int calls, const std::function<void()>& call);

double median(std::vector<double> values);

}  // namespace witan
