# What `cmake --install` installs, in two components: `program` (the program, its manual page and completions, recipes,
# docs) and `development` (what programs that use the libraries are built with). cpack makes a Debian package of each.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(share ${CMAKE_INSTALL_DATADIR})
set(docs ${CMAKE_INSTALL_DATADIR}/doc/witan)
set(config ${CMAKE_INSTALL_LIBDIR}/cmake/witan)
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME program)
install(TARGETS witan)
install(DIRECTORY recipes DESTINATION ${share}/witan)
install(DIRECTORY docs DESTINATION ${docs})
install(FILES README.md LICENSE DESTINATION ${docs})
# The docs name recipes by their places in the source tree.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/pages)
file(CREATE_LINK ../../witan/recipes ${PROJECT_BINARY_DIR}/pages/recipes SYMBOLIC)
install(FILES ${PROJECT_BINARY_DIR}/pages/recipes DESTINATION ${docs})

# The program prints these itself, when it is installed.
set(pages ${PROJECT_BINARY_DIR}/pages)
install(CODE "execute_process(COMMAND \"${CMAKE_COMMAND}\" -D \"program=$<TARGET_FILE:witan>\" -D \"pages=${pages}\"
                                      -P \"${PROJECT_SOURCE_DIR}/cmake/WitanPages.cmake\" COMMAND_ERROR_IS_FATAL ANY)")
install(FILES ${pages}/witan.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${pages}/witan.bash DESTINATION ${share}/bash-completion/completions RENAME witan)
install(FILES ${pages}/witan.zsh DESTINATION ${share}/zsh/site-functions RENAME _witan)
install(FILES ${pages}/witan.fish DESTINATION ${share}/fish/vendor_completions.d)

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)
# All libraries but the commands' own: witan::NAME for each, and witan::witan.
get_property(folders GLOBAL PROPERTY WITAN_FOLDERS)
list(REMOVE_ITEM folders cli)
add_library(witan_all INTERFACE)
add_library(witan::witan ALIAS witan_all)
set_target_properties(witan_all PROPERTIES EXPORT_NAME witan)
list(TRANSFORM folders PREPEND witan_ OUTPUT_VARIABLE libraries)
target_link_libraries(witan_all INTERFACE ${libraries})
install(TARGETS witan_all ${libraries} EXPORT witan INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT witan FILE witanTargets.cmake NAMESPACE witan:: DESTINATION ${config})
configure_package_config_file(cmake/witanConfig.cmake.in ${PROJECT_BINARY_DIR}/witanConfig.cmake
                              INSTALL_DESTINATION ${config})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/witanConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/witanConfig.cmake ${PROJECT_BINARY_DIR}/witanConfigVersion.cmake
              cmake/WitanThirdParty.cmake
        DESTINATION ${config})
install(DIRECTORY examples DESTINATION ${docs})

# Their headers, except those that only sources of the same folder include: they are of one processor, of CUDA or of Beast.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} witan/*.h)
list(FILTER headers EXCLUDE REGEX "^witan/(cli/|kernels/[a-z0-9]+/cpu/|tokenizer/text/ascii_|serve/http_session|.*/(cuda|no_cuda|ucx|no_ucx)/)")
foreach(header IN LISTS headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
endforeach()

include(WitanPackages)
