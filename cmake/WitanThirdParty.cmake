# Where each third-party library that the libraries of witan/ link comes from: imported target | how it is found | Debian
# package. One table for this build, for programs that use an installed Witan (witanConfig.cmake, beside which this file
# is installed), and for the dependencies of the package witan-dev.
set(WITAN_THIRD_PARTY
    "fmt::fmt|package fmt|libfmt-dev"
    "nlohmann_json::nlohmann_json|package nlohmann_json|nlohmann-json3-dev"
    "ZLIB::ZLIB|package ZLIB|zlib1g-dev"
    "OpenSSL::Crypto|package OpenSSL 1.1.1 COMPONENTS Crypto|libssl-dev"
    "LAPACK::LAPACK|package LAPACK|liblapack-dev"
    "PkgConfig::zstd|module libzstd|libzstd-dev"
    "PkgConfig::snappy|module snappy|libsnappy-dev"
    "PkgConfig::lz4|module liblz4|liblz4-dev"
    "PkgConfig::xxhash|module libxxhash|libxxhash-dev"
    "PkgConfig::simdjson|module simdjson|libsimdjson-dev"
    # Unicode 9 or later: see witan/tokenizer/text/normalizer.h
    "PkgConfig::utf8proc|module libutf8proc>=2.0|libutf8proc-dev"
    "PkgConfig::oniguruma|module oniguruma>=6.9.8|libonig-dev"
    "PkgConfig::yaml-cpp|module yaml-cpp>=0.6|libyaml-cpp-dev"
    "PkgConfig::libcurl|module libcurl>=7.85|libcurl4-openssl-dev"  # CURLOPT_PROTOCOLS_STR
)
set(WITAN_THIRD_PARTY_CUDA "CUDA::cudart_static|package CUDAToolkit|cuda-cudart-dev-13-0")

# Finds the library of an imported target. `problem` becomes empty, or says what to install.
function(witan_find_third_party target problem)
  if(TARGET ${target})
    set(${problem} "" PARENT_SCOPE)
    return()
  endif()
  set(rows ${WITAN_THIRD_PARTY} ${WITAN_THIRD_PARTY_CUDA})
  list(FILTER rows INCLUDE REGEX "^${target}[|]")
  if(NOT rows)
    message(FATAL_ERROR "${target} is missing in the table of cmake/WitanThirdParty.cmake, which says how it is found")
  endif()
  string(REPLACE "|" ";" row "${rows}")
  list(GET row 1 how)
  list(GET row 2 debian_package)
  string(REPLACE " " ";" arguments "${how}")
  list(POP_FRONT arguments kind)
  if(kind STREQUAL "package")
    find_package(${arguments} QUIET)
  else()
    string(APPEND debian_package " and pkg-config")
    find_package(PkgConfig QUIET)
    if(PKG_CONFIG_FOUND)
      string(REPLACE "PkgConfig::" "" prefix ${target})
      pkg_check_modules(${prefix} QUIET IMPORTED_TARGET ${arguments})
    endif()
  endif()
  if(TARGET ${target})
    set(${problem} "" PARENT_SCOPE)
  else()
    set(${problem} "${target} (${how}) was not found: install ${debian_package}" PARENT_SCOPE)
  endif()
endfunction()
