# Every third-party library, found once. Targets use the imported names below, and those of WitanThirdParty.cmake.
include(WitanThirdParty)
foreach(row IN LISTS WITAN_THIRD_PARTY)
  string(REGEX REPLACE "[|].*" "" target "${row}")
  witan_find_third_party(${target} problem)
  if(problem)
    message(FATAL_ERROR "${problem}; scripts/setup.sh run installs all that a build needs")
  endif()
endforeach()
# What only the program, the tests or sources themselves need: a program that links the libraries does not.
find_package(CLI11 REQUIRED)
find_package(OpenSSL 1.1.1 REQUIRED COMPONENTS Crypto SSL)
find_package(PkgConfig REQUIRED)
pkg_check_modules(libedit REQUIRED IMPORTED_TARGET libedit)
find_package(Boost 1.70 REQUIRED)  # headers alone: Asio and Beast, for witan/serve
find_path(TOMLPLUSPLUS_INCLUDE toml++/toml.h REQUIRED)
# Carries what CPU ranks in several processes send each other. Headers alone: the library is loaded when a job needs it
# (witan/comm/ucx/ucx.h), and a program without it uses the ranks' own TCP connections.
pkg_check_modules(ucx ucx>=1.13)
if(NOT ucx_FOUND)
  message(STATUS "UCX (libucx-dev) was not found: CPU ranks in several processes will use TCP connections")
endif()
