# How Witan's targets are declared: one library per folder, one test program per folder.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Internal invariants stay checked in releases: they cost nothing next to a matrix product.
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
if(WITAN_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1")  # instrumented code compiles slowly enough
endif()
set(CMAKE_CXX_FLAGS_DEBUG "-Og -g")
# A test's own code runs once, and takes less than half of the time to compile for that. Libraries, and so all that is
# tested, are compiled as they are elsewhere.
set(WITAN_TEST_OPTIONS $<$<COMPILE_LANGUAGE:CXX>:-Og>)

find_program(CCACHE ccache)
if(CCACHE)
  # Paths below the tree are hashed relative to it, so that another clone finds what this one compiled.
  # It keeps what was compiled with a precompiled header when it need not look for macros and dates in there.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
                                  CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
endif()

add_library(witan_flags INTERFACE)
target_include_directories(witan_flags INTERFACE ${PROJECT_SOURCE_DIR})
# -fopenmp-simd turns on `#pragma omp simd` alone: no OpenMP runtime, no teams. Under it clang cannot capture structured
# bindings, so that a build with clang, for fuzzing, goes without.
target_compile_options(
  witan_flags
  INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;$<IF:$<CXX_COMPILER_ID:Clang>,-Wno-source-uses-openmp,-fopenmp-simd>;-fno-math-errno>
)
# g++ looks for memory that it needs no more when it has taken so much (KiB), not all the time: some 6 % of its time, and
# 0.2 GB more.
target_compile_options(witan_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=500000>)
if(WITAN_NATIVE)
  target_compile_options(witan_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
else()
  # What goes to other machines tells nothing of the folder in which it was built: assert names files from the tree on.
  target_compile_options(
    witan_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>
                          $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${WITAN_ARCHITECTURE}>>:-march=${WITAN_ARCHITECTURE}>)
endif()
if(WITAN_SANITIZE)
  # g++ takes the sanitizers' own code for uses of uninitialised values.
  target_compile_options(witan_flags INTERFACE -fsanitize=${WITAN_SANITIZE} -fno-omit-frame-pointer -g1
                                               $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(witan_flags INTERFACE -fsanitize=${WITAN_SANITIZE})
endif()
find_package(Threads REQUIRED)
target_link_libraries(witan_flags INTERFACE Threads::Threads)

# Most of a source's compile time is spent on headers and on templates that each source instantiates again; joined sources
# pay for them once. CPU twins of kernels stay apart (kernels/CMakeLists.txt): it is the optimiser that takes time there,
# and it would inline otherwise. A name in an anonymous namespace must be the only one in its folder; a source that
# brings many short names along has SKIP_UNITY_BUILD_INCLUSION.
set(WITAN_JOINED 24)

# Puts the sources of `list` that include the headers with the most templates first, header by header, so that few
# batches instantiate them.
function(witan_sort_by_headers list)
  set(rest ${${list}})
  set(sorted)
  foreach(header CLI/CLI.hpp regex nlohmann/json.hpp)
    foreach(source ${rest})
      file(STRINGS ${source} includes REGEX "^#include <${header}>")
      if(includes)
        list(APPEND sorted ${source})
        list(REMOVE_ITEM rest ${source})
      endif()
    endforeach()
  endforeach()
  set(${list} ${sorted} ${rest} PARENT_SCOPE)
endfunction()

# witan_join_sources(TARGET): in equal batches of WITAN_JOINED sources at most.
function(witan_join_sources target)
  get_target_property(sources ${target} SOURCES)
  set(cuda ${sources})
  list(FILTER cuda INCLUDE REGEX "\\.cu$")
  set_source_files_properties(${cuda} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(WITAN_JOIN)
    list(FILTER sources INCLUDE REGEX "\\.cpp$")
    list(LENGTH sources count)
    math(EXPR batches "(${count} + ${WITAN_JOINED} - 1) / ${WITAN_JOINED}")
    math(EXPR size "(${count} + ${batches} - 1) / ${batches}")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
    # g++ takes a joined source for a header that several others include.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# Libraries, rooms and sources whose code runs briefly, or waits for disks, networks and people: -Og compiles them in 60 %
# of the time of -O2. Loops over weights, tokens or bytes stay at -O2.
set(WITAN_BRIEF checkpoint cli convert fetch planner report serve tasks train/config train/loop
                train/record train/signals train/state)
set(WITAN_BRIEF_EXCEPT checkpoint/load convert/elements convert/adapters convert/links)
set(WITAN_BRIEF_OPTIONS $<$<COMPILE_LANGUAGE:CXX>:-Og>)

# Moves the sources of `list` that are in the rooms of WITAN_BRIEF to the list `brief`.
function(witan_split_brief list brief)
  list(JOIN WITAN_BRIEF "|" rooms)
  list(JOIN WITAN_BRIEF_EXCEPT "|" except)
  set(all ${${list}})
  set(brief_sources ${all})
  list(FILTER brief_sources INCLUDE REGEX "^${PROJECT_SOURCE_DIR}/witan/(${rooms})/.*[.]cpp$")
  list(FILTER brief_sources EXCLUDE REGEX "^${PROJECT_SOURCE_DIR}/witan/(${except})[/.]")
  if(brief_sources)
    list(REMOVE_ITEM all ${brief_sources})
  endif()
  set(${list} ${all} PARENT_SCOPE)
  set(${brief} ${brief_sources} PARENT_SCOPE)
endfunction()

# witan_library(tensor base): target witan_tensor from the sources of this folder and its rooms, using witan_base. In
# the folder and in each of its rooms, cuda/ belongs to builds with CUDA and no_cuda/ to those without, and likewise
# ucx/ and no_ucx/; main/ holds a program of its own, and cpu/ a library that is joined to this one.
function(witan_library name)
  set(folder ${CMAKE_CURRENT_SOURCE_DIR})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cpp ${folder}/*.cu)
  set(others main cpu no_cuda no_ucx)
  if(NOT WITAN_CUDA)
    list(APPEND others cuda)
    list(REMOVE_ITEM others no_cuda)
  endif()
  if(NOT ucx_FOUND)
    list(APPEND others ucx)
    list(REMOVE_ITEM others no_ucx)
  endif()
  foreach(other ${others})
    list(FILTER sources EXCLUDE REGEX "^${folder}/([^/]+/)?${other}/")
  endforeach()
  witan_sort_by_headers(sources)
  witan_split_brief(sources brief)
  if(brief AND NOT sources)
    set(sources ${brief})
    set(brief "")
    set(all_brief ON)
  endif()
  add_library(witan_${name} STATIC ${sources})
  # Programs that link an installed library choose their own warnings and processor.
  target_link_libraries(witan_${name} PUBLIC $<BUILD_INTERFACE:witan_flags> Threads::Threads)
  target_compile_features(witan_${name} PUBLIC cxx_std_20)
  if(WITAN_SANITIZE)
    target_compile_options(witan_${name} INTERFACE $<INSTALL_INTERFACE:-fsanitize=${WITAN_SANITIZE}>)
    target_link_options(witan_${name} INTERFACE $<INSTALL_INTERFACE:-fsanitize=${WITAN_SANITIZE}>)
  endif()
  add_library(witan::${name} ALIAS witan_${name})
  set_target_properties(witan_${name} PROPERTIES EXPORT_NAME ${name})
  set_property(GLOBAL APPEND PROPERTY WITAN_FOLDERS ${name})
  if(all_brief)
    target_compile_options(witan_${name} PRIVATE ${WITAN_BRIEF_OPTIONS})
    witan_use_precompiled(witan_${name} brief)
  else()
    set_property(GLOBAL APPEND PROPERTY WITAN_FAST_OBJECTS $<TARGET_OBJECTS:witan_${name}>)
    witan_use_precompiled(witan_${name} std)
  endif()
  witan_join_sources(witan_${name})
  if(brief)
    add_library(witan_${name}_brief OBJECT ${brief})
    target_link_libraries(witan_${name}_brief PRIVATE witan_flags)
    target_compile_options(witan_${name}_brief PRIVATE ${WITAN_BRIEF_OPTIONS})
    witan_use_precompiled(witan_${name}_brief brief)
    witan_join_sources(witan_${name}_brief)
    target_sources(witan_${name} PRIVATE $<TARGET_OBJECTS:witan_${name}_brief>)
  endif()
  # Nobody else is compiled with CUDA's flags: objects are then those of a build without CUDA, and ccache has them.
  set(cuda_sources ${sources})
  list(FILTER cuda_sources INCLUDE REGEX "^${folder}/([^/]+/)?cuda/")
  if(WITAN_CUDA AND cuda_sources)
    target_link_libraries(witan_${name} PRIVATE $<BUILD_INTERFACE:witan_cuda_flags> CUDA::cudart_static)
  endif()
  foreach(dependency ${ARGN})
    target_link_libraries(witan_${name} PUBLIC witan_${dependency})
    if(brief)
      target_link_libraries(witan_${name}_brief PRIVATE witan_${dependency})
    endif()
  endforeach()
endfunction()

# witan_join(tensor list): replaces the tests of a folder in `list` by files in the build folder that each stand for
# up to WITAN_JOINED of them. A source that is no test, or that has more than one anonymous namespace, stays itself.
function(witan_join folder list)
  set(script ${PROJECT_SOURCE_DIR}/scripts/join_tests.sh)
  set(joined)
  set(tests)
  witan_sort_by_headers(${list})
  foreach(source ${${list}})
    file(STRINGS ${source} anonymous REGEX "^namespace {$")
    list(LENGTH anonymous count)
    if(source MATCHES "_test\\.cpp$" AND count EQUAL 1)
      list(APPEND tests ${source})
    else()
      list(APPEND joined ${source})
    endif()
  endforeach()
  list(LENGTH tests left)
  math(EXPR files "(${left} + ${WITAN_JOINED} - 1) / ${WITAN_JOINED}")
  while(left GREATER 0)
    math(EXPR count "(${left} + ${files} - 1) / ${files}")
    list(SUBLIST tests 0 ${count} some)
    list(REMOVE_ITEM tests ${some})
    set(file ${CMAKE_CURRENT_BINARY_DIR}/joined/${folder}_${files}.cpp)
    add_custom_command(OUTPUT ${file} COMMAND ${script} ${file} ${some} DEPENDS ${script} ${some} VERBATIM)
    list(APPEND joined ${file})
    list(LENGTH tests left)
    math(EXPR files "${files} - 1")
  endwhile()
  set(${list} ${joined} PARENT_SCOPE)
endfunction()

# witan_test(tensor): program test_tensor from tests/tensor and its rooms; each TEST becomes one ctest entry.
# Ceilings that tests measure are kept in the build folder. Of the processors that scripts/test.sh tells ctest of, four
# are a core: a test takes those (tests/waiting.cmake has the others).
function(witan_test folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp)
  if(NOT sources)
    return()
  endif()
  if(WITAN_JOIN)
    witan_join(${folder} sources)
  endif()
  add_executable(test_${folder} ${sources})
  witan_use_precompiled(test_${folder} tests)
  target_compile_options(test_${folder} PRIVATE ${WITAN_TEST_OPTIONS})
  target_link_libraries(test_${folder} PRIVATE witan_test_support witan_${folder})
  foreach(dependency ${ARGN})
    target_link_libraries(test_${folder} PRIVATE witan_${dependency})
  endforeach()
  gtest_discover_tests(test_${folder} TEST_PREFIX ${folder}/ DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300
                       PROCESSORS 4 ENVIRONMENT XDG_CACHE_HOME=${PROJECT_BINARY_DIR}/cache)
endfunction()
