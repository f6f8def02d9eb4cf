// A shared library of NVIDIA's, loaded when it is first needed, so that a program built with CUDA starts on machines
// that have none.
#pragma once

#include <string>
#include <vector>

namespace witan::cuda {

class Library {
 public:
  // Opens the first of `files` ("libnccl.so.2") that is found: by the system's loader, in the folders that
  // WITAN_LIBRARY_PATH lists (separated by colons), in CUDA_HOME/lib64 and in /usr/local/cuda/lib64. `name` is what a
  // person calls it, `package` what brings it. Throws DeviceError: what was looked for where, and the way out.
  Library(std::string name, const std::vector<std::string>& files, const std::string& package);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() = default;  // stays loaded: its threads and handles may outlive whoever asked for it

  // Throws DeviceError where the library is too old to have it.
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

// Those that Witan uses, each opened once. They throw as above whenever it is not there.
const Library& cublaslt();
const Library& cudnn();
const Library& nccl();

}  // namespace witan::cuda
