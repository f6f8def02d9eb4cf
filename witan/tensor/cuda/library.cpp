#include "witan/tensor/cuda/library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <sstream>

#include "witan/base/error.h"

namespace witan::cuda {
namespace {

std::vector<std::string> folders() {
  std::vector<std::string> out = {""};  // the system's loader
  if (const char* listed = std::getenv("WITAN_LIBRARY_PATH")) {
    std::istringstream text(listed);
    for (std::string folder; std::getline(text, folder, ':');)
      if (!folder.empty()) out.push_back(folder + "/");
  }
  if (const char* home = std::getenv("CUDA_HOME")) out.push_back(std::string(home) + "/lib64/");
  out.emplace_back("/usr/local/cuda/lib64/");
  return out;
}

}  // namespace

Library::Library(std::string name, const std::vector<std::string>& files, const std::string& package)
    : name_(std::move(name)) {
  std::string why;
  for (const std::string& folder : folders()) {
    for (const std::string& file : files) {
      handle_ = ::dlopen((folder + file).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_) {
        link_map* map = nullptr;
        path_ = ::dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] ? map->l_name : folder + file;
        return;
      }
      why += cat("\n  ", ::dlerror());
    }
  }
  throw DeviceError(cat(name_, " cannot be loaded. Install it (", package,
                        "), or name its folder in WITAN_LIBRARY_PATH. Tried:", why));
}

void* Library::find(const char* name) const {
  void* symbol = ::dlsym(handle_, name);
  require<DeviceError>(symbol != nullptr, name_, " at ", path_, " has no ", name, ": it is too old or broken");
  return symbol;
}

const Library& cublaslt() {
  static const Library library("cuBLASLt", {"libcublasLt.so.13"}, "the CUDA toolkit 13, or nvidia-cublas of PyPI");
  return library;
}
const Library& cudnn() {
  static const Library library("cuDNN", {"libcudnn.so.9"},
                               "cudnn9-cuda-13 of NVIDIA's repository, or "
                               "nvidia-cudnn-cu13 of PyPI");
  return library;
}
const Library& nccl() {
  static const Library library("NCCL", {"libnccl.so.2"},
                               "libnccl2 of NVIDIA's repository, or nvidia-nccl-cu13 of PyPI");
  return library;
}

}  // namespace witan::cuda
