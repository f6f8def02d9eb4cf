// File system calls that fail, or end the process, at a chosen moment. faults.cpp stands in for the C library's calls
// in the whole test program; unarmed, they do what they always did.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan::test {

struct Fault {
  int64_t at = 0;       // the number of the call that is hit, from 1; 0: none; -1: none, and arm() prints "begin"
  int error = 0;        // the errno that it fails with, undone; 0: the process is killed just before it
  int64_t slow_ms = 0;  // what every fsync takes longer
  // Only calls that give a disk something to keep are counted and hit: not those that read, and none that removes.
  bool writes_only = false;
  bool lasting = false;   // all calls after it fail, too, as on a full disk
  bool half = false;      // if it writes, half of the bytes are written, and the calls after it fail
  std::string slow = {};  // a part of the paths that slow_ms is for; empty: all
};

// From now on, calls that name a file below `folder` (absolute), by path or descriptor, on any thread, are counted and
// hit.
void arm(const fs::path& folder, const Fault& fault);

// Those calls so far: "fsync step-4/manifest.json".
std::vector<std::string> calls_seen();

}  // namespace witan::test
