// That the program links is the test.
int main() {}
