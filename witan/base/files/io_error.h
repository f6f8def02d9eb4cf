// The error of a system call on a file.
#pragma once

#include <filesystem>
#include <string_view>

namespace witan {

// "WHAT PATH: why", where `error` is an errno. Throws DiskFullError if the disk, or the user's share of it, is full,
// and IoError otherwise.
[[noreturn]] void throw_io_error(std::string_view what, const std::filesystem::path& path, int error);

}  // namespace witan
