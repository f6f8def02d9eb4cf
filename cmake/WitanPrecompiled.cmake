# Headers of others, parsed once for all sources that include them, which is half of what compiling one takes. Sources
# still include what they use: WITAN_PRECOMPILE=OFF builds without.
option(WITAN_PRECOMPILE "Parse headers of the standard library and of dependencies once for all sources" ON)

set(std_headers
    <algorithm> <array> <atomic> <bit> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <deque> <exception>
    <filesystem> <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span> <sstream> <stdexcept>
    <string> <string_view> <thread> <tuple> <unordered_map> <utility> <variant> <vector> <fmt/core.h>)

# witan_precompile(NAME LIBRARIES target... HEADERS header...)
function(witan_precompile name)
  cmake_parse_arguments(PARSE_ARGV 1 given "" "" "LIBRARIES;HEADERS")
  set(source ${PROJECT_BINARY_DIR}/precompiled/${name}.cpp)
  if(NOT EXISTS ${source})
    file(WRITE ${source} "// Nothing but what is precompiled for others.\n")
  endif()
  add_library(witan_precompiled_${name} OBJECT ${source})
  target_link_libraries(witan_precompiled_${name} PRIVATE witan_flags ${given_LIBRARIES})
  target_precompile_headers(witan_precompiled_${name} PRIVATE ${given_HEADERS})
  witan_ccache_precompiled(witan_precompiled_${name})
endfunction()

# What ccache asks for with g++.
function(witan_ccache_precompiled target)
  if(CCACHE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endfunction()

function(witan_use_precompiled target name)
  if(WITAN_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM witan_precompiled_${name})
    witan_ccache_precompiled(${target})
  endif()
endfunction()

if(WITAN_PRECOMPILE)
  witan_precompile(std LIBRARIES fmt::fmt HEADERS ${std_headers})
  witan_precompile(brief LIBRARIES fmt::fmt nlohmann_json::nlohmann_json
                   HEADERS ${std_headers} <fmt/format.h> <nlohmann/json.hpp>)
  target_compile_options(witan_precompiled_brief PRIVATE ${WITAN_BRIEF_OPTIONS})
  if(WITAN_TESTS)
    find_package(GTest REQUIRED)
    witan_precompile(tests LIBRARIES fmt::fmt GTest::gmock nlohmann_json::nlohmann_json
                     HEADERS ${std_headers} <gmock/gmock.h> <gtest/gtest.h> <nlohmann/json.hpp>)
    target_compile_options(witan_precompiled_tests PRIVATE ${WITAN_TEST_OPTIONS})
  endif()
endif()
