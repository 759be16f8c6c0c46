! 13_fortran.f90: the functions of hvd/c/hvd.h from Fortran, by iso_c_binding. Prints the mean of what the ranks have.
!   g++ -std=c++20 -O2 -I include -c c/hvd.cpp
!   gfortran examples/13_fortran.f90 hvd.o -lstdc++ -pthread -o fortran
!   ./fortran                  alone
!   hvdrun -np 4 ./fortran     or any other launcher: hvd_init takes the place of this rank from the environment
module hvd
  use, intrinsic :: iso_c_binding
  implicit none

  integer(c_int), parameter :: hvd_abi_version = 1, hvd_ok = 0
  integer(c_int), parameter :: hvd_float64 = 11
  integer(c_int), parameter :: hvd_average = 0

  interface
    integer(c_int) function hvd_init(abi, transport, comm) bind(c)
      import :: c_int, c_int64_t, c_ptr
      integer(c_int), value :: abi
      type(c_ptr), value :: transport
      integer(c_int64_t), intent(out) :: comm
    end function
    integer(c_int) function hvd_free(comm) bind(c)
      import :: c_int, c_int64_t
      integer(c_int64_t), value :: comm
    end function
    integer(c_int) function hvd_rank(comm) bind(c)
      import :: c_int, c_int64_t
      integer(c_int64_t), value :: comm
    end function
    integer(c_int) function hvd_size(comm) bind(c)
      import :: c_int, c_int64_t
      integer(c_int64_t), value :: comm
    end function
    ! Arrays are given by c_loc: in and out may be the same.
    integer(c_int) function hvd_allreduce(comm, in, out, count, dtype, op) bind(c)
      import :: c_int, c_int64_t, c_size_t, c_ptr
      integer(c_int64_t), value :: comm
      type(c_ptr), value :: in, out
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype, op
    end function
    type(c_ptr) function hvd_last_error() bind(c)
      import :: c_ptr
    end function
  end interface

contains

  ! Ends the program with the sentence of an error.
  subroutine check(code)
    integer(c_int), intent(in) :: code
    character(kind=c_char), pointer :: text(:)
    integer :: length
    if (code == hvd_ok) return
    call c_f_pointer(hvd_last_error(), text, [4096])
    length = 0
    do while (text(length + 1) /= c_null_char)
      length = length + 1
    end do
    print '(*(a))', text(1:length)
    stop 1
  end subroutine

end module hvd

program fortran
  use hvd
  implicit none
  integer(c_int64_t) :: comm
  real(c_double), target :: x(3)
  integer :: rank, ranks

  call check(hvd_init(hvd_abi_version, c_null_ptr, comm))
  rank = hvd_rank(comm)
  ranks = hvd_size(comm)
  x = [1.0d0, 2.0d0, 3.0d0] + 2 * rank
  call check(hvd_allreduce(comm, c_loc(x), c_loc(x), size(x, kind=c_size_t), hvd_float64, hvd_average))
  if (rank == 0) print '("mean over ranks:", 3f8.3)', x
  if (any(abs(x - [1.0d0, 2.0d0, 3.0d0] - (ranks - 1)) > 1d-12)) stop 2
  call check(hvd_free(comm))
end program fortran
