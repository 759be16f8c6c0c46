"""Conan's recipe for the headers of hvd."""

from pathlib import Path

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy, get


class Hvd(ConanFile):
    name = "hvd"
    description = "Collective communication for data-parallel training, over shared memory, MPI, TCP and NCCL"
    license = "Apache-2.0"
    topics = ("allreduce", "mpi", "nccl", "deep-learning", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    no_copy_source = True

    def package_id(self):
        self.info.clear()  # headers are the same for all settings

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("hvd is for Linux")
        check_min_cppstd(self, 20)

    def source(self):
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def package(self):
        source, folder = Path(self.source_folder), Path(self.package_folder)
        copy(self, "LICENSE", source, folder / "licenses")
        copy(self, "*.hpp", source / "include", folder / "include")

    def package_info(self):
        self.cpp_info.bindirs = self.cpp_info.libdirs = []
        self.cpp_info.system_libs = ["pthread"]
