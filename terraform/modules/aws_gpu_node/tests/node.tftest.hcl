mock_provider "aws" {
  mock_data "aws_instances" {
    defaults = { ids = ["i-0123456789abcdef0"] }
  }
}

variables {
  launch_template_id = "lt-0123456789abcdef0"
}

run "no_machine_while_autodl_has_a_card" {
  command = plan

  variables {
    autodl_available = true
  }

  assert {
    condition     = length(aws_instance.gpu) == 0 && output.instance_id == null
    error_message = "There must be no machine."
  }
}

run "nobody_buys_by_accident" {
  command = plan

  variables {
    autodl_available = false
  }

  expect_failures = [aws_instance.gpu]
}

run "an_adopted_machine_that_is_gone_is_not_bought_again" {
  command = plan

  variables {
    autodl_available    = false
    adopted_instance_id = "i-0fffffffffffffff0"
  }

  expect_failures = [aws_instance.gpu]
}

run "terraform_starts_it_when_told" {
  command = plan

  variables {
    autodl_available    = false
    create_by_terraform = true
    instance_type       = "g4dn.xlarge"
    subnet_id           = "subnet-a"
  }

  assert {
    condition     = length(aws_instance.gpu) == 1 && aws_instance.gpu[0].instance_type == "g4dn.xlarge"
    error_message = "There must be one machine."
  }
}

run "not_an_instance_id" {
  command = plan

  variables {
    autodl_available    = false
    adopted_instance_id = "web-1"
  }

  expect_failures = [var.adopted_instance_id]
}
