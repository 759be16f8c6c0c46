vcpkg_download_distfile(archive URLS "@URL@" FILENAME "hvd-@VERSION@.tar.gz" SHA512 "@SHA512@")
vcpkg_extract_source_archive(source_path ARCHIVE "${archive}")

set(VCPKG_BUILD_TYPE release) # headers only
vcpkg_cmake_configure(SOURCE_PATH "${source_path}" OPTIONS -DHVD_INSTALL=ON)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME hvd CONFIG_PATH share/cmake/hvd)

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/lib")
vcpkg_install_copyright(FILE_LIST "${source_path}/LICENSE")
