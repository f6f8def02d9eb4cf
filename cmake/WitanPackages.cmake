# The Debian packages that `make package` builds: witan (component `program`) and witan-dev (`development`).
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR})
set(CPACK_PACKAGE_CONTACT "The Witan authors <witan@localhost>" CACHE STRING "Maintainer of the Debian packages")
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS ${CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS})
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/debian.cmake)
set(CPACK_WITAN_COPYRIGHT ${PROJECT_SOURCE_DIR}/packaging/copyright)

set(CPACK_COMPONENTS_ALL program development)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

execute_process(COMMAND dpkg --print-architecture OUTPUT_VARIABLE architecture OUTPUT_STRIP_TRAILING_WHITESPACE
                ERROR_QUIET)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME witan)
set(CPACK_DEBIAN_PROGRAM_FILE_NAME witan_${PROJECT_VERSION}_${architecture}.deb)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION "trains Mixture-of-Experts language models
One program takes text to tokens, tokens to a trained model, and the model to
generated text, in any combination of data, expert, tensor, context and
pipeline parallelism. This build needs a processor with AVX2 and runs on CPUs.")
# Libraries that the program is linked with are found by dpkg-shlibdeps. It loads UCX if it is there, for ranks in
# several processes; perl-doc is the text of `witan train` without --data; certificates are for the Hugging Face hub.
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "ca-certificates, perl-doc")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "libucx0")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME witan-dev)
set(CPACK_DEBIAN_DEVELOPMENT_FILE_NAME witan-dev_${PROJECT_VERSION}_${architecture}.deb)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "libraries of Witan, for programs with models of their own
Static libraries, C++ headers and the CMake package witan, whose targets are
witan::NAME for each of the libraries. An example is in
/usr/share/doc/witan/examples.")
list(TRANSFORM WITAN_THIRD_PARTY REPLACE ".*[|]" "" OUTPUT_VARIABLE third_party)
list(JOIN third_party ", " third_party)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "pkg-config, ${third_party}")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_RECOMMENDS "cmake, g++")

include(CPack)
