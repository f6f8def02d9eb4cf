# Every third-party library, found once. Targets use the imported names below.
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(simdjson REQUIRED IMPORTED_TARGET simdjson)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
find_path(TOMLPLUSPLUS_INCLUDE toml++/toml.h REQUIRED)

# Found by hand: its package's CMake file asks for an OpenCL development package that it does not need.
# Left out under the sanitizers, which cannot see into it; Witan's own kernel takes its place.
if(WITAN_ONEDNN AND NOT WITAN_SANITIZE)
  find_library(DNNL_LIBRARY dnnl)
  find_path(DNNL_INCLUDE oneapi/dnnl/dnnl.h)
  if(DNNL_LIBRARY AND DNNL_INCLUDE)
    add_library(DNNL::dnnl UNKNOWN IMPORTED)
    set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                          INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE})
  endif()
endif()
