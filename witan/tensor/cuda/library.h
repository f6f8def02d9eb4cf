// A shared library of NVIDIA that is loaded on first use, so that a program built with CUDA starts on machines without
// it.
#pragma once

#include <string>
#include <vector>

namespace witan::cuda {

class Library {
 public:
  // Opens the first of `files` ("libnccl.so.2") that is found: by the system's loader, in the folders listed in
  // WITAN_LIBRARY_PATH (separated by colons), in CUDA_HOME/lib64 and in /usr/local/cuda/lib64. `name` is its usual
  // name, `package` the package that contains it. Throws DeviceError with what was looked for where, and the fix.
  Library(std::string name, const std::vector<std::string>& files, const std::string& package);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() = default;  // stays loaded: its threads and handles may outlive this object

  // Throws DeviceError if the library is too old to have it.
  template <class Function>
  Function* symbol(const char* name) const {
    return reinterpret_cast<Function*>(find(name));
  }
  const std::string& path() const { return path_; }

 private:
  void* find(const char* name) const;

  std::string name_, path_;
  void* handle_ = nullptr;
};

// The libraries that Witan uses, each opened once. They throw as above whenever one is missing.
const Library& cublaslt();
const Library& cudnn();
const Library& nccl();

}  // namespace witan::cuda
