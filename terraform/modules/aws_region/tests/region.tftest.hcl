mock_provider "aws" {
  mock_data "aws_vpc" {
    defaults = { id = "vpc-1" }
  }

  mock_data "aws_subnets" {
    defaults = { ids = ["subnet-a"] }
  }

  mock_data "aws_subnet" {
    defaults = { id = "subnet-a", availability_zone = "us-east-1a" }
  }

  mock_data "aws_availability_zones" {
    defaults = { names = ["us-east-1a", "us-east-1c"] }
  }

  mock_data "aws_ssm_parameter" {
    defaults = { value = "ami-0fedcba9876543210" }
  }

  mock_data "aws_ami" {
    defaults = { root_device_name = "/dev/xvda" }
  }

  mock_resource "aws_iam_instance_profile" {
    defaults = { arn = "arn:aws:iam::123456789012:instance-profile/failover/x" }
  }
}

variables {
  name   = "digits-1a2b3c4d"
  region = "us-east-1"
  bucket = "my-checkpoints"
  prefix = "jobs/digits"
  tags   = { "failover:owner" = "gpu-failover" }
}

run "as_designed" {
  command = apply

  assert {
    condition = (
      aws_launch_template.node.metadata_options[0].http_tokens == "required" &&
      aws_launch_template.node.metadata_options[0].http_put_response_hop_limit == 2
    )
    error_message = "IMDSv2 must be required, with a hop limit of 2."
  }

  assert {
    condition = (
      aws_launch_template.node.block_device_mappings[0].ebs[0].encrypted == "true" &&
      aws_launch_template.node.block_device_mappings[0].ebs[0].volume_type == "gp3" &&
      aws_launch_template.node.block_device_mappings[0].device_name == "/dev/xvda"
    )
    error_message = "The image's root disk must be encrypted gp3."
  }

  assert {
    condition     = aws_launch_template.node.instance_initiated_shutdown_behavior == "terminate"
    error_message = "A machine that shuts itself down must be gone."
  }

  assert {
    condition     = aws_launch_template.node.key_name == null && length(aws_security_group.node.ingress) == 0
    error_message = "No key and no way in by default."
  }

  assert {
    condition     = aws_launch_template.node.image_id == "ami-0fedcba9876543210"
    error_message = "The image comes from the public parameter."
  }

  assert {
    condition     = length(aws_launch_template.node.instance_market_options) == 0
    error_message = "The market is the request's business."
  }

  assert {
    condition = (
      jsondecode(aws_iam_role_policy.store[0].policy).Statement[0].Resource == "arn:aws:s3:::my-checkpoints/jobs/digits/*" &&
      length(jsondecode(aws_iam_role_policy.store[0].policy).Statement) == 2
    )
    error_message = "The role must reach the job's prefix and nothing else."
  }

  assert {
    condition     = output.subnet_ids == tomap({ "us-east-1a" = "subnet-a" })
    error_message = "The default VPC's subnets are offered by zone."
  }
}

run "own_vpc" {
  command = plan

  variables {
    vpc = "own"
  }

  assert {
    condition = (
      aws_subnet.own["us-east-1a"].cidr_block == "10.73.0.0/20" && aws_subnet.own["us-east-1c"].cidr_block == "10.73.32.0/20"
    )
    error_message = "A zone's range follows from its letter."
  }
}

run "no_bucket_no_role" {
  command = plan

  variables {
    bucket = null
  }

  assert {
    condition     = length(aws_iam_role.node) == 0 && length(aws_launch_template.node.iam_instance_profile) == 0
    error_message = "Without a bucket there is no role."
  }
}

run "ssh_from_one_address" {
  command = plan

  variables {
    ssh_cidr = "203.0.113.7/32"
  }

  assert {
    condition     = one(aws_security_group.node.ingress).cidr_blocks == tolist(["203.0.113.7/32"])
    error_message = "SSH is open to the operator alone."
  }
}

run "ssh_open_to_the_world" {
  command = plan

  variables {
    ssh_cidr = "0.0.0.0/0"
  }

  expect_failures = [var.ssh_cidr]
}

run "ssh_open_to_the_world_otherwise_spelt" {
  command = plan

  variables {
    ssh_cidr = "203.0.113.7/0"
  }

  expect_failures = [var.ssh_cidr]
}

run "ssh_open_to_half_the_world" {
  command = plan

  variables {
    ssh_cidr = "0.0.0.0/1"
  }

  expect_failures = [var.ssh_cidr]
}

run "ssh_open_to_the_world_ipv6" {
  command = plan

  variables {
    ssh_cidr = "::/0"
  }

  expect_failures = [var.ssh_cidr]
}

run "ssh_nonsense" {
  command = plan

  variables {
    ssh_cidr = "everyone"
  }

  expect_failures = [var.ssh_cidr]
}

run "prefix_with_a_wildcard" {
  command = plan

  variables {
    prefix = "jobs/*"
  }

  expect_failures = [var.prefix]
}

run "prefix_missing" {
  command = plan

  variables {
    prefix = ""
  }

  expect_failures = [aws_iam_role.node]
}
