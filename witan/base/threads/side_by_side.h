// Many small pieces of work that wait for a file system more than they compute.
#pragma once

#include <cstddef>
#include <functional>

namespace witan {

// Runs work(0) ... work(count - 1), each once, in any order, on up to 32 threads whatever the cores, and returns when
// all are done. Of what they throw, the error of the lowest number is rethrown then.
void side_by_side(size_t count, const std::function<void(size_t i)>& work);

}  // namespace witan
