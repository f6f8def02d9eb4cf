// How the system reads a mapped file of tokens: where samples lie, and no more.
#pragma once

#include <cstddef>
#include <span>

namespace witan {

// Samples lie anywhere in a file: the system is to read what they need, and no more. Its own guess, of up to megabytes
// for each, would take a thousand times as long where files are larger than memory.
void expect_random_reads(std::span<const std::byte> mapped);

// Asks for these bytes of a mapping, all at once, and does not wait for them where the file system can read in the
// background, as those of disks, NFS and FUSE do. What is asked for is read, once; asking again costs a system call.
void read_ahead(std::span<const std::byte> mapped);

}  // namespace witan
