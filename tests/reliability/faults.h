// File system calls that fail, or end the process, at a chosen moment. faults.cpp replaces the C library's functions in
// the whole test program; without arm() they behave as usual.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan::test {

struct Fault {
  int64_t at = 0;       // the call to hit, counted from 1; 0: none; -1: none, and arm() prints "begin"
  int error = 0;        // the errno of the failed call; 0: the process is killed just before the call
  int64_t slow_ms = 0;  // added to the duration of every fsync
  // Counts and hits only calls that store data: neither reads nor removals.
  bool writes_only = false;
  bool lasting = false;   // all later calls fail too, as on a full disk
  bool half = false;      // a hit write stores half of its bytes, and the next calls fail
  std::string slow = {};  // part of the paths that slow_ms applies to; empty: all
};

// Starts counting and hitting calls of any thread that access a file below `folder` (absolute), by path or by
// descriptor.
void arm(const fs::path& folder, const Fault& fault);

// The calls so far, such as "fsync step-4/manifest.json".
std::vector<std::string> calls_seen();

}  // namespace witan::test
