# Every third-party library, found once. Targets use the imported names below.
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(fmt REQUIRED)
find_package(ZLIB REQUIRED)
find_package(OpenSSL 1.1.1 REQUIRED COMPONENTS Crypto SSL)
find_package(PkgConfig REQUIRED)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(snappy REQUIRED IMPORTED_TARGET snappy)
pkg_check_modules(lz4 REQUIRED IMPORTED_TARGET liblz4)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(simdjson REQUIRED IMPORTED_TARGET simdjson)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc>=2.0)  # Unicode 9 or later: see witan/tokenizer/normalizer.h
pkg_check_modules(oniguruma REQUIRED IMPORTED_TARGET oniguruma>=6.9.8)
pkg_check_modules(libcurl REQUIRED IMPORTED_TARGET libcurl>=7.85)  # CURLOPT_PROTOCOLS_STR
pkg_check_modules(libedit REQUIRED IMPORTED_TARGET libedit)
find_package(Boost 1.70 REQUIRED)  # headers alone: Asio and Beast, for witan/serve
find_package(LAPACK REQUIRED)
find_package(yaml-cpp 0.6 REQUIRED)
find_path(TOMLPLUSPLUS_INCLUDE toml++/toml.h REQUIRED)
# Carries what CPU ranks in several processes send each other. Headers alone: the library is loaded when a job needs it
# (witan/comm/ucx/ucx.h), and a program without it uses the ranks' own TCP connections.
pkg_check_modules(ucx ucx>=1.13)
if(NOT ucx_FOUND)
  message(STATUS "UCX (libucx-dev) was not found: CPU ranks in several processes will use TCP connections")
endif()
